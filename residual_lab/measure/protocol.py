"""The measuring protocol in words, for printing under tables; docs/measuring.md explains it."""

PROTOCOL = """\
Loss is {loss}.
{warmup}: neither timed nor counted in the peak of memory.
The clock stops for validation and checkpoints; the device is synchronised at the edges of each \
window of {window}; a step time is a window's time divided by its steps.
Peak memory is that of training steps: bytes of live tensors on CPU, bytes allocated on CUDA.
FLOPs are counted operation by operation; MFU is n/a where the device's peak is unknown."""


NATS = "nats per token, over whole validation and test sets, weighted by token"
NATS_PER_IMAGE = "nats per image, over whole validation and test sets; an image counts as a token"
SQUARED_ERROR = "the squared error, its mean over features and over whole validation and test sets"


LOSS_UNITS = {"tokens": "nats/token", "images": "nats/image", "examples": "squared error"}
_KINDS = {"synthetic": "examples", "digits": "images", "cifar": "images", "images": "images"}


def kind_of(source: object) -> str:
    """What a run reads, by its ``data.source``: tokens, images, or examples of a linear map."""
    return _KINDS.get(str(source), "tokens")


def protocol_text(warmup_steps: int, window_steps: int, loss: str = NATS) -> str:
    """The protocol in a few lines, with the numbers of a run's ``measure`` section."""
    first = "The first step is" if warmup_steps == 1 else f"The first {warmup_steps} steps are"
    window = "1 step" if window_steps == 1 else f"{window_steps} steps"
    return PROTOCOL.format(loss=loss, warmup=f"{first} warm-up", window=window)
