"""Timing several things against each other in one process."""

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np

Work = Callable[[], object]


def interleaved(
    work: Mapping[str, Work],
    rounds: int,
    synchronize: Callable[[], None] = lambda: None,
    *,
    at_least: float = 0.05,
    now: Callable[[], float] = perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each piece of work, one value a round.

    In every round each piece is done once, the order moved on by one, so that what drifts
    (clock speed, other processes) falls on all alike. A value is the mean over as many calls as
    the first piece needs for ``at_least`` seconds. Each is done twice before, untimed.
    """
    for do in work.values():
        do()
    repeats = 1
    for name, do in work.items():
        seconds = _timed(do, 1, synchronize, now)
        if name == next(iter(work)):
            repeats = max(1, math.ceil(at_least / max(seconds, 1e-9)))
    seconds_of: dict[str, list[float]] = {name: [] for name in work}
    names = list(work)
    with _no_collection():
        for number in range(rounds):
            gc.collect()
            first = number % len(names)
            for name in names[first:] + names[:first]:
                seconds_of[name].append(_timed(work[name], repeats, synchronize, now) / repeats)
    return seconds_of


def _timed(
    do: Work, repeats: int, synchronize: Callable[[], None], now: Callable[[], float]
) -> float:
    synchronize()
    start = now()
    for _ in range(repeats):
        do()
    synchronize()
    return now() - start


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's garbage collector, which would run in somebody's time.

    What there is already is frozen, so that collecting between rounds takes no time.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class Ratio:
    """A median ratio with its 95% interval."""

    median: float
    low: float
    high: float
    n: int


def ratio(seconds: Sequence[float], base: Sequence[float], resamples: int = 2000) -> Ratio:
    """The median over rounds of ``seconds / base``, each within its round.

    The interval is the percentile bootstrap of that median (Efron 1979), over rounds.
    """
    ratios = np.asarray(seconds) / np.asarray(base)
    draws = np.random.default_rng(0).integers(len(ratios), size=(resamples, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975])
    return Ratio(float(np.median(ratios)), float(low), float(high), len(ratios))
