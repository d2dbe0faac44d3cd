"""What the runs of a table came to: its rows beside their baselines, in the order of the file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from residual_lab.reproduce.plan import Planned
from residual_lab.reproduce.running import place_of
from residual_lab.reproduce.table_file import Row, TableFile
from residual_lab.tables.comparison import Comparison, by_seed, compared
from residual_lab.tables.grouping import Group, settings_of
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.runs import Run, read_runs
from residual_lab.tables.statistics import spread


@dataclass(frozen=True)
class Results:
    """``rows`` has one comparison a row; ``tried`` one for each learning rate of each row.

    ``runs`` are all that were read, unfinished ones too. ``of_file`` are the rows of the table
    that the comparisons belong to.
    """

    of_file: tuple[Row, ...]
    rows: tuple[Comparison, ...]
    tried: tuple[Comparison, ...]
    runs: tuple[Run, ...]


def results(table: TableFile, scale: str, plan: Sequence[Planned], kept: Path) -> Results:
    """Read the runs of ``plan``; a row without any has an empty group.

    Where a row was trained at several learning rates, that with the best validation loss is
    the row.
    """
    places = {planned.path.name: place_of(planned, kept) for planned in plan}
    runs, _ = read_runs([place for place in places.values() if place.exists()])
    by_name = {run.path.name: run for run in runs}
    metric = metric_named(table.metric)
    names = list(dict.fromkeys(planned.row for planned in plan))
    rows = [row for row in table.rows if row.name in names]
    tried: dict[str, list[Group]] = {}
    for row in rows:
        own = [planned for planned in plan if planned.row == row.name]
        tried[row.name] = _groups(table.shown_name(row, scale), own, by_name)
    best = {name: min(groups, key=_validation_loss) for name, groups in tried.items()}
    bases = [row.baseline or table.baseline for row in rows]
    return Results(
        of_file=tuple(rows),
        rows=tuple(
            compared([(best[r.name], best[b]) for r, b in zip(rows, bases, strict=True)], metric)
        ),
        tried=tuple(
            compared(
                [
                    (group, best[base])
                    for row, base in zip(rows, bases, strict=True)
                    for group in tried[row.name]
                ],
                metric,
            )
        ),
        runs=tuple(runs),
    )


def _groups(label: str, plan: Sequence[Planned], runs: Mapping[str, Run]) -> list[Group]:
    """One for each learning rate; a run that has not ended is no member."""
    rates = sorted({planned.lr for planned in plan})
    groups = []
    for lr in rates:
        own = [planned for planned in plan if planned.lr == lr]
        found = [runs[one.path.name] for one in own if one.path.name in runs]
        ended = tuple(run for run in found if run.status != "unfinished")
        settings = settings_of(own[0].config.model_dump(mode="json"))
        groups.append(Group(label, settings, ended))
    return groups


def _validation_loss(group: Group) -> float:
    """Of a group that lost runs none: a rate at which some seeds diverge is not the best."""
    values = by_seed(group, metric_named("val_loss"))
    complete = values and len(values) == len(group.runs)
    return spread(list(values.values())).mean if complete else inf
