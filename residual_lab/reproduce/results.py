"""What the runs of a table came to: its rows beside their baselines, in the order of the file."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from residual_lab.reproduce.arguments import Asked
from residual_lab.reproduce.plan import Planned, rows_of
from residual_lab.reproduce.running import place_of
from residual_lab.reproduce.table_file import Row
from residual_lab.tables.comparison import Comparison, best_validated, compared
from residual_lab.tables.grouping import Group, settings_of
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.runs import Run, read_runs


@dataclass(frozen=True)
class Results:
    """``rows`` has one comparison a row; ``tried`` one for each learning rate of each row.

    ``of_file`` are the rows of the table that the comparisons belong to, ``runs`` what was read
    of them, unfinished ones too. ``missing``: how many of the ``planned`` runs have not ended.
    """

    of_file: tuple[Row, ...]
    rows: tuple[Comparison, ...]
    tried: tuple[Comparison, ...]
    runs: tuple[Run, ...]
    planned: int
    missing: int


def results(asked: Asked, plan: Sequence[Planned], kept: Path) -> Results:
    """Read the runs of ``plan``; a row without any has an empty group.

    Where a row was trained at several learning rates, that with the best validation loss is the
    row. Says on standard error which runs cannot be read.
    """
    table = asked.table
    places = {planned.path.name: place_of(planned, kept) for planned in plan}
    runs, unreadable = read_runs([place for place in places.values() if place.exists()])
    for problem in unreadable:
        print(problem, file=sys.stderr)
    by_name = {run.path.name: run for run in runs}
    metric = metric_named(table.metric)
    rows = rows_of(table, asked.choices)
    tried: dict[str, list[Group]] = {}
    for row in rows:
        own = [planned for planned in plan if planned.row == row.name]
        tried[row.name] = _groups(asked.choices.shown_name(table, row), own, by_name)
    best = {name: best_validated(groups) for name, groups in tried.items()}
    bases = {row.name: best[row.baseline or table.baseline] for row in rows}
    shown = [(best[row.name], bases[row.name]) for row in rows]
    every = [(group, bases[row.name]) for row in rows for group in tried[row.name]]
    members = {run.path.name for group in best.values() for run in group.runs}
    ended = {run.path.name for run in runs if run.status != "unfinished"}
    return Results(
        of_file=tuple(rows),
        rows=tuple(compared([_on_the_same_data(*pair) for pair in shown], metric)),
        tried=tuple(compared([_on_the_same_data(*pair) for pair in every], metric)),
        runs=tuple(r for r in runs if r.path.name in members or r.path.name not in ended),
        planned=len(places),
        missing=len(places.keys() - ended),
    )


def _groups(label: str, plan: Sequence[Planned], runs: Mapping[str, Run]) -> list[Group]:
    """One for each learning rate; a run that has not ended is no member."""
    groups = []
    for lr in sorted({planned.lr for planned in plan}):
        own = [planned for planned in plan if planned.lr == lr]
        found = [runs[one.path.name] for one in own if one.path.name in runs]
        ended = tuple(run for run in found if run.status != "unfinished")
        settings = settings_of(own[0].config.model_dump(mode="json"))
        groups.append(Group(label, settings, ended))
    return groups


def _on_the_same_data(group: Group, base: Group) -> tuple[Group, Group | None]:
    """No baseline where its data were others, as of another version of Python's library."""
    own, other = ({run.result.get("data_fingerprint") for run in g.finished} for g in (group, base))
    return group, base if not own or not other or own == other else None
