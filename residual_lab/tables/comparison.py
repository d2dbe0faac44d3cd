"""Groups of runs beside a baseline: differences by seed, and p-values corrected for all rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from residual_lab.errors import LabError
from residual_lab.tables.grouping import Group, find_baselines, group_runs
from residual_lab.tables.metrics import Metric, metric_named
from residual_lab.tables.runs import Run
from residual_lab.tables.statistics import Difference, difference, holm, spread


@dataclass(frozen=True)
class Comparison:
    """A group, the baseline for its data (None: there is none) and the difference between them.

    ``p`` is the p-value corrected for all rows of the table.
    """

    group: Group
    baseline: Group | None
    difference: Difference | None
    p: float | None

    @property
    def is_baseline(self) -> bool:
        return self.group is self.baseline


def compare_groups(runs: Sequence[Run], baseline: str, metric: Metric) -> list[Comparison]:
    """What tables and plots are made from: each configuration beside its baseline.

    Raises LabError if no run has come to an end, and for a baseline that is not there (``plain``
    may be absent: then there are no differences).
    """
    ended = [run for run in runs if run.status != "unfinished"]
    if not ended:
        raise LabError(f"none of {len(runs)} runs has come to an end yet: nothing to compare")
    groups = group_runs(ended)

    def best(group: Group) -> float:
        values = list(by_seed(group, metric).values())
        return (1 if metric.lower_is_better else -1) * spread(values).mean if values else inf

    found = find_baselines(groups, baseline, best)
    return compared([(group, found.get(group.data)) for group in groups], metric)


def compared(pairs: Sequence[tuple[Group, Group | None]], metric: Metric) -> list[Comparison]:
    """Each group against its baseline, in the order given."""
    differences = [
        None if base is None or base is group else difference(values, by_seed(base, metric))
        for (group, base), values in ((pair, by_seed(pair[0], metric)) for pair in pairs)
    ]
    corrected = iter(holm([d.p for d in differences if d is not None and d.p is not None]))
    return [
        Comparison(group, base, d, next(corrected) if d is not None and d.p is not None else None)
        for (group, base), d in zip(pairs, differences, strict=True)
    ]


def by_seed(group: Group, metric: Metric) -> dict[int, float]:
    """The metric of each finished run that has it."""
    values = {run.seed: metric.value(run) for run in group.finished}
    return {seed: value for seed, value in values.items() if value is not None}


def best_validated(groups: Sequence[Group]) -> Group:
    """The group with most finished runs, and of those the lowest validation loss.

    Losses are compared over the seeds that those groups share, so a learning rate at which some
    seeds diverge is not the best where at another none does.
    """
    losses = [by_seed(group, metric_named("val_loss")) for group in groups]
    most = max(map(len, losses))
    candidates = [(g, own) for g, own in zip(groups, losses, strict=True) if len(own) == most]
    shared = set.intersection(*(set(own) for _, own in candidates))
    return min(candidates, key=lambda c: sum(c[1][seed] for seed in sorted(shared)))[0]


def baselines_first(rows: Sequence[Comparison]) -> list[Comparison]:
    """One kind of data after the other, each begun by its baseline."""
    return sorted(rows, key=lambda row: (str(row.group.data), not row.is_baseline))
