"""Learning-rate schedules: pure functions from the optimizer step to a share of the peak.

``steps`` is the length of the run; step 0 is the first optimizer step. All but ``one_cycle``
warm up linearly from ``initial`` at step 0 to 1 at step ``warmup``.
"""

import math
from collections.abc import Callable

from residual_lab.config.schema import OptimConfig

Schedule = Callable[[int], float]


def build_schedule(optim: OptimConfig, steps: int) -> Schedule:
    """The schedule that ``optim.schedule`` names, for a run of ``steps`` optimizer steps."""
    warmup, initial, final = optim.warmup_steps, optim.initial_lr_factor, optim.final_lr_factor
    if optim.schedule == "one_cycle":
        return lambda step: one_cycle(step, steps, warmup, initial, final)
    after_warmup: dict[str, Schedule] = {
        "constant": lambda step: 1.0,
        "cosine": lambda step: cosine(step, steps, warmup, final),
        "inverse_sqrt": lambda step: inverse_sqrt(step, warmup),
        "wsd": lambda step: stable_then_decay(step, steps, optim.decay_fraction, final),
    }
    decay = after_warmup[optim.schedule]
    return lambda step: linear(initial, 1.0, step / warmup) if step < warmup else decay(step)


def linear(start: float, end: float, progress: float) -> float:
    """``start`` at progress 0, ``end`` at progress 1."""
    return start + (end - start) * progress


def half_cosine(start: float, end: float, progress: float) -> float:
    """``start`` at progress 0, ``end`` at progress 1, flat at both."""
    return end + (start - end) * (1 + math.cos(math.pi * progress)) / 2


def cosine(step: int, steps: int, warmup: int, final: float) -> float:
    """From 1 at ``warmup`` to ``final`` at ``steps``, as optax.warmup_cosine_decay_schedule."""
    return half_cosine(1.0, final, min(1.0, (step - warmup) / max(1, steps - warmup)))


def inverse_sqrt(step: int, warmup: int) -> float:
    """√(warmup / step), as ``create_learning_rate_schedule`` of Flax ``examples/lm1b``."""
    return math.sqrt(max(1, warmup) / max(1, step))


def stable_then_decay(step: int, steps: int, decay_fraction: float, final: float) -> float:
    """1, then linear to ``final`` at ``steps`` over the last ``decay_fraction`` of the steps.

    The decay of warm-up–stable–decay in epfml/llm-baselines (its ``linear`` choice).
    """
    decay_steps = decay_fraction * steps
    return linear(final, 1.0, min(1.0, max(0.0, (steps - step) / decay_steps)))


def one_cycle(step: int, steps: int, warmup: int, initial: float, final: float) -> float:
    """torch's OneCycleLR with cosines both ways and ``pct_start = warmup / steps``.

    It peaks at step ``warmup - 1`` and ends at step ``steps - 1``, as in DenseFormer's code
    (``div_factor=100``: initial 0.01; ``final_div_factor=0.1``: final 0.1).
    """
    peak, last = warmup - 1, steps - 1
    if step <= peak:
        return half_cosine(initial, 1.0, step / peak if peak else 1.0)
    return half_cosine(1.0, final, min(1.0, (step - peak) / max(1, last - peak)))
