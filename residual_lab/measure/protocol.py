"""The measuring protocol in words, for printing under tables; docs/measuring.md explains it."""

PROTOCOL = """\
Loss is nats per token, over whole validation and test sets, weighted by token.
The first {warmup_steps} steps are warm-up: neither timed nor counted in the peak of memory.
The clock stops for validation and checkpoints; the device is synchronised at the edges of each \
window of {window_steps} steps; a step time is a window's time divided by its steps.
Peak memory is that of training steps: bytes of live tensors on CPU, bytes allocated on CUDA.
FLOPs are counted operation by operation; MFU is n/a where the device's peak is unknown."""


def protocol_text(warmup_steps: int, window_steps: int) -> str:
    """The protocol in a few lines, with the numbers of a run's ``measure`` section."""
    return PROTOCOL.format(warmup_steps=warmup_steps, window_steps=window_steps)
