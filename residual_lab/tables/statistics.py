"""Seeds aggregated and compared: t-intervals, paired and Welch's t-tests, Holm's correction."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

ROUNDING = 1e-9  # of a mean: what differs by less differs by rounding


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n − 1 below the line; None for a single value)."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """``row − baseline`` with its 95% t-interval and two-sided p-value.

    ``test`` is "paired" (by shared seeds), "welch" (seeds not shared), or "none": one value, or the
    same difference at every seed, says nothing about noise, so that interval and p-value are None.
    ``n`` counts what the test stands on: pairs, or for Welch's test the smaller of the two groups.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    n: int
    test: str


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation over seeds. Raises ValueError when there is no value."""
    if not values:
        raise ValueError("no values")
    mean = values[0] if len(set(values)) == 1 else fmean(values)  # counts stay whole numbers
    return Spread(mean, stdev(values) if len(values) > 1 else None, len(values))


def difference(row: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Compare values by seed: paired where two seeds or more are shared, otherwise Welch.

    Pairing removes what a seed does to both (the base weights and the order of the data are the
    same), so it is far sharper. With fewer than two shared seeds and two values or more on both
    sides the test is Welch's. None where one side has no value.
    """
    if not row or not baseline:
        return None
    shared = sorted(row.keys() & baseline.keys())
    if len(shared) >= 2:
        return paired([row[seed] for seed in shared], [baseline[seed] for seed in shared])
    if len(row) >= 2 and len(baseline) >= 2:
        return welch(list(row.values()), list(baseline.values()))
    if shared:
        return Difference(row[shared[0]] - baseline[shared[0]], None, None, None, 1, "none")
    return Difference(fmean(row.values()) - fmean(baseline.values()), None, None, None, 1, "none")


def paired(row: Sequence[float], baseline: Sequence[float]) -> Difference:
    """The paired t-test of two equally long sequences, two values or more."""
    gaps = [a - b for a, b in zip(row, baseline, strict=True)]
    error = stdev(gaps) / math.sqrt(len(gaps))
    return _t_test(fmean(gaps), error, len(gaps) - 1, len(gaps), "paired")


def welch(row: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Welch's t-test for unequal variances; two values or more on each side.

    Degrees of freedom by Welch and Satterthwaite.
    """
    a, b = stdev(row) ** 2 / len(row), stdev(baseline) ** 2 / len(baseline)
    smaller = min(len(row), len(baseline))
    if a + b == 0:
        freedom = float(len(row) + len(baseline) - 2)
    else:
        freedom = (a + b) ** 2 / (a**2 / (len(row) - 1) + b**2 / (len(baseline) - 1))
    return _t_test(fmean(row) - fmean(baseline), math.sqrt(a + b), freedom, smaller, "welch")


def _t_test(mean: float, error: float, freedom: float, n: int, test: str) -> Difference:
    # Imported at use: a third of a second that listing need not pay.
    from scipy.special import stdtr, stdtrit

    if error <= ROUNDING * abs(mean):  # without noise there is no test: only equal values are equal
        if mean == 0:
            return Difference(0.0, 0.0, 0.0, 1.0, n, test)
        return Difference(mean, None, None, None, n, "none")
    half = float(stdtrit(freedom, 0.975)) * error
    p = 2 * float(stdtr(freedom, -abs(mean) / error))
    return Difference(mean, mean - half, mean + half, p, n, test)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Holm 1979): the chance of any false positive stays at the level.

    Returns adjusted p-values in the order given.
    """
    count = len(p_values)
    adjusted, largest = [0.0] * count, 0.0
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
