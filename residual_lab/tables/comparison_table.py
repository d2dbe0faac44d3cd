"""The comparison table: one row a configuration, with the mean ± standard deviation over seeds."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from residual_lab.tables.comparison import Comparison, baselines_first, by_seed, compare_groups
from residual_lab.tables.grouping import Group
from residual_lab.tables.metrics import METRICS, Metric, comparable, metric_named
from residual_lab.tables.notes import SURVIVORS, WELCH, notes
from residual_lab.tables.numbers import DASH, interval_text, percentage, probability
from residual_lab.tables.runs import Run
from residual_lab.tables.statistics import spread
from residual_lab.tables.table import Cell, Column, Table

ColumnOfCells = tuple[Column, Callable[[Comparison], Cell]]


def compare(runs: Sequence[Run], baseline: str = "plain", metric: str = "val_loss") -> Table:
    """The table of all runs, grouped by what differs between their configurations.

    Differences in ``metric`` are ``row − baseline``, paired by shared seeds, with a 95% t-interval
    and a two-sided p-value after Holm's correction for the number of rows. Diverged and failed
    runs are counted in their row; unfinished ones are left out and named in a note.
    Raises LabError for an unknown metric, a baseline that is not there (``plain`` may be absent:
    then there are no differences), and when no run has come to an end.
    """
    chosen = metric_named(metric)
    rows = baselines_first(compare_groups(runs, baseline, chosen))
    columns = columns_of(rows, chosen)
    shown = sum(len(row.group.runs) for row in rows)
    return Table(
        f"{shown} run{'s' * (shown != 1)} in {len(rows)} configuration{'s' * (len(rows) != 1)}",
        tuple(column for column, _ in columns),
        tuple(tuple(cell(row) for _, cell in columns) for row in rows),
        tuple(notes(rows, runs, chosen)),
    )


def columns_of(
    rows: Sequence[Comparison], chosen: Metric, without: Collection[str] = ()
) -> list[ColumnOfCells]:
    """Headings with what makes their cells; metrics that no run has are left out."""
    runs = [run for row in rows for run in row.group.runs]
    columns: list[ColumnOfCells] = [
        (Column("row", "residual"), lambda row: Cell(row.group.label, row.group.label)),
        (Column("seeds", "seeds", "right"), lambda row: _seeds(row.group)),
        (Column(chosen.key, chosen.title, "right"), partial(_value, metric=chosen)),
    ]
    if any(row.baseline for row in rows):
        columns += [
            (
                Column("difference", f"Δ {chosen.title}", "right"),
                partial(_difference, metric=chosen),
            ),
            (Column("p", "p", "right"), _p_value),
        ]
    for metric in METRICS:
        if metric is chosen or metric.key in without:
            continue
        if any(metric.value(run) is not None for run in runs):
            columns.append(
                (Column(metric.key, metric.title, "right"), partial(_value, metric=metric))
            )
    return columns


def _seeds(group: Group) -> Cell:
    """How many runs finished, and what became of the others."""
    counts = {s: sum(run.status == s for run in group.runs) for s in ("diverged", "failed")}
    lost = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    finished = len(group.finished)
    text = f"{finished} of {len(group.runs)}: {lost}" if lost else str(finished)
    text += SURVIVORS if lost and finished else ""
    return Cell(text, finished, counts)


def _value(row: Comparison, metric: Metric) -> Cell:
    values = by_seed(row.group, metric)
    if not values and metric.key.startswith("params"):  # known although the run came to nothing
        known = [v for run in row.group.runs if (v := metric.value(run)) is not None]
        values = dict(enumerate(known[:1]))
    if not values:
        return Cell(DASH)
    found = spread(list(values.values()))
    text, details = metric.text(found), {"std": found.std, "n": found.n}
    if row.group.finished and found.n != len(row.group.finished):
        text += f" (n = {found.n})"
    change = _relative_change(row, metric, found.mean)
    if change is not None:
        text += f" ({percentage(change)})"
    return Cell(text, found.mean, details | ({"relative": change} if metric.relative else {}))


def _relative_change(row: Comparison, metric: Metric, mean: float) -> float | None:
    """Against the baseline; None where the two were not measured on the same thing."""
    if not metric.relative or row.baseline is None or row.is_baseline:
        return None
    own, base = row.group, row.baseline
    values = by_seed(base, metric).values()
    if not values or not comparable(metric, (*own.finished, *base.finished)):
        return None
    return mean / spread(list(values)).mean - 1


def _difference(row: Comparison, metric: Metric) -> Cell:
    """``−0.0261 [−0.0352, −0.0170]``"""
    found = row.difference
    if found is None:
        return Cell("baseline" if row.is_baseline else DASH)
    details = {"low": found.low, "high": found.high, "n": found.n, "test": found.test}
    mean = found.mean / metric.unit
    if found.low is None or found.high is None:
        return Cell(interval_text(mean, places=metric.places), found.mean, details)
    low, high = found.low / metric.unit, found.high / metric.unit
    return Cell(interval_text(mean, low, high), found.mean, details)


def _p_value(row: Comparison) -> Cell:
    found = row.difference
    if found is None:
        return Cell("")
    if row.p is None:
        return Cell("no evidence (n = 1)" if found.n == 1 else "no evidence (no spread)")
    mark = WELCH if found.test == "welch" else ""
    return Cell(probability(row.p) + mark, row.p, {"uncorrected": found.p})
