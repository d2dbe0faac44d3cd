"""Median and 90th percentile of step times."""

from collections.abc import Sequence
from statistics import median, quantiles
from typing import Any


def step_time_summary(seconds: Sequence[float]) -> dict[str, Any]:
    """``median``, ``p90`` (linear between the two nearest) and ``n``, the number of values."""
    if not seconds:
        return {"median": None, "p90": None, "n": 0}
    deciles = quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else list(seconds)
    return {"median": median(seconds), "p90": deciles[-1], "n": len(seconds)}
