"""What a table can show of a run: where it stands in ``result.json``, its title and its unit."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from residual_lab.errors import LabError, suggestion
from residual_lab.tables.numbers import fixed, mean_and_deviation, with_prefix
from residual_lab.tables.runs import Run
from residual_lab.tables.statistics import Spread


@dataclass(frozen=True)
class Metric:
    """``path`` leads to the number in ``result.json``; a screen shows it divided by ``unit``.

    ``relative``: the change against the baseline is shown beside it.
    ``same``: entries of ``result.json`` that must be equal for that change to mean anything.
    """

    path: tuple[str, ...]
    title: str
    unit: float = 1
    lower_is_better: bool = True
    relative: bool = False
    same: tuple[tuple[str, ...], ...] = ()
    show: Callable[[Spread], str] = mean_and_deviation

    @property
    def places(self) -> int:
        """Decimals of a difference of which nothing else is known."""
        return 4 if self.unit == 1 else 2

    @property
    def key(self) -> str:
        return self.path[0]

    def value(self, run: Run) -> float | None:
        """The number of a run, in base units; None where it has none."""
        value = lookup(run.result, self.path)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return value if math.isfinite(value) else None

    def text(self, spread: Spread) -> str:
        """Mean ± standard deviation in the unit of the screen."""
        std = None if spread.std is None else spread.std / self.unit
        return self.show(Spread(spread.mean / self.unit, std, spread.n))


def _prefixed(spread: Spread) -> str:
    return with_prefix(spread.mean)


def _loss(spread: Spread) -> str:
    return mean_and_deviation(spread, digits=5)


def _percent(spread: Spread) -> str:
    return mean_and_deviation(spread) if spread.std else fixed(spread.mean, 2)


def _accuracy(key: str, title: str) -> Metric:
    """A share in files, percent on a screen."""
    return Metric((key,), title, unit=0.01, lower_is_better=False, show=_percent)


METRICS = (
    Metric(("val_loss",), "val loss", show=_loss),
    Metric(("test_loss",), "test loss", show=_loss),
    Metric(("perplexity",), "perplexity"),
    _accuracy("val_accuracy", "val accuracy [%]"),
    _accuracy("test_accuracy", "test accuracy [%]"),
    _accuracy("val_top5_accuracy", "val top-5 [%]"),
    _accuracy("test_top5_accuracy", "test top-5 [%]"),
    Metric(("params",), "params", relative=True),
    Metric(("params_connection",), "in connection"),
    Metric(
        ("peak_memory_bytes", "value"),
        "peak memory [GiB]",
        unit=2**30,
        relative=True,
        same=(("device",), ("peak_memory_bytes", "kind")),
    ),
    Metric(("step_time_s", "median"), "step time [s]", relative=True, same=(("device",),)),
    Metric(("tokens_per_s",), "tokens/s", lower_is_better=False),
    Metric(("flops_per_token",), "FLOPs/token", show=_prefixed),
    Metric(("mfu",), "MFU", lower_is_better=False),
)


def metric_named(key: str) -> Metric:
    """Raises LabError with the choices for an unknown key."""
    by_key = {metric.key: metric for metric in METRICS}
    if key in by_key:
        return by_key[key]
    choices = ", ".join(by_key)
    raise LabError(f"metric={key}: no such metric{suggestion(key, by_key)} (there are {choices})")


def comparable(metric: Metric, runs: Iterable[Run]) -> bool:
    """Whether the metric was measured on the same thing in all runs."""
    measured = list(runs)
    return all(len({str(lookup(run.result, p)) for run in measured}) <= 1 for p in metric.same)


def lookup(result: dict[str, Any], path: tuple[str, ...]) -> Any:
    """The entry that the keys of ``path`` lead to; None where there is none."""
    value: Any = result
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value
