"""From a table's rows to the runs that it needs: every row, learning rate and seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from residual_lab.config.composition import compose_with, started_hydra
from residual_lab.config.schema import Config
from residual_lab.errors import ConfigError, LabError, suggestion
from residual_lab.jobs import quoted
from residual_lab.reproduce.table_file import Row, TableFile, known_scale
from residual_lab.run_directory import RunDirectory
from residual_lab.tables.grouping import check_keys, settings_of


@dataclass(frozen=True)
class Planned:
    """One run of a table. ``overrides`` are all that ``residual-lab train`` needs to make it."""

    row: str
    config: Config
    overrides: tuple[str, ...]
    after: "Planned | None" = None

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def lr(self) -> float:
        return self.config.optim.lr

    @property
    def path(self) -> Path:
        return RunDirectory.path_of(self.config)


@dataclass(frozen=True)
class Choices:
    """What the command says beside the table: how often, how large, with what in every run.

    Args:
        scale: paper, gpu or desk.
        seeds: None: 0, 1, … as many as the scale has.
        rows: names of the rows to run; none: all.
        lr_factors: each row is trained with these multiples of its learning rate.
        layers: ``model.layers`` by row, where it was solved.
        names: what such rows are called.
        left_out: rows that are no longer asked for, since another is what they would be.
        overrides: of every run, after the table's own.
    """

    scale: str
    seeds: tuple[int, ...] | None = None
    rows: tuple[str, ...] = ()
    lr_factors: tuple[float, ...] = (1.0,)
    layers: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    def shown_name(self, table: TableFile, row: Row) -> str:
        """What the table calls a row."""
        return self.names.get(row.name) or table.shown_name(row, self.scale)


def rows_of(table: TableFile, choices: Choices) -> list[Row]:
    """The rows to run, with those that they are compared with or start from.

    Raises LabError for a name that the table does not have.
    """
    names = [row.name for row in table.rows]
    unknown = [name for name in choices.rows if name not in names]
    if unknown:
        near = suggestion(unknown[0], names)
        raise LabError(
            f"rows={unknown[0]}: no such row of {table.name}{near} (there are {', '.join(names)})"
        )
    wanted = set(choices.rows or names)
    waiting = list(wanted)
    while waiting:
        row = table.row(waiting.pop())
        for other in (row.baseline or table.baseline, row.after):
            if other is not None and other not in wanted:
                wanted.add(other)
                waiting.append(other)
    return [row for row in table.rows if row.name in wanted and row.name not in choices.left_out]


def plan(table: TableFile, choices: Choices) -> list[Planned]:
    """Every run that the table needs: one seed after the other, so that it fills up evenly.

    Raises ConfigError with the problems of all rows.
    """
    rows = rows_of(table, choices)
    configs = compose_rows(table, rows, choices)
    seeds = choices.seeds or tuple(range(table.scales[known_scale(choices.scale)].seeds))
    made: dict[tuple[str, float, int], Planned] = {}

    def make(row: Row, factor: float, seed: int) -> Planned:
        key = (row.name, factor, seed)
        if key not in made:
            parent = make(table.row(row.after), factor, seed) if row.after else None
            made[key] = _planned(row, configs[row.name], factor, seed, parent)
        return made[key]

    return [
        make(row, factor, seed) for seed in seeds for factor in choices.lr_factors for row in rows
    ]


def compose_rows(
    table: TableFile, rows: Sequence[Row], choices: Choices
) -> dict[str, tuple[Config, tuple[str, ...]]]:
    """The configuration of each row, seed 0, with its overrides."""
    found: dict[str, tuple[Config, tuple[str, ...]]] = {}
    problems: dict[str, str] = {}  # with the first row that has it: most come from the command
    with started_hydra() as hydra:
        for row in rows:
            overrides = [*table.overrides_of(row, choices.scale), *choices.overrides]
            if row.name in choices.layers:
                overrides.append(f"model.layers={choices.layers[row.name]}")
            try:
                config = compose_with(hydra, overrides)
            except ConfigError as error:
                for line in error.problems:
                    problems.setdefault(line, row.name)
            else:
                found[row.name] = (config, tuple(overrides))
    if problems:
        raise ConfigError(*(f"{table.name}, row {r}: {line}" for line, r in problems.items()))
    if not choices.rows:  # else those that have the keys may be among the others
        keys = [key for key in (table.axis, *(table.grid or ())) if key is not None]
        settings = (settings_of(config.model_dump(mode="json")) for config, _ in found.values())
        check_keys(settings, keys, f"{table.name}, axis or grid: ")
    return found


def same_runs(plan: Sequence[Planned]) -> list[tuple[str, ...]]:
    """The names of rows that an override of the command has made one and the same run."""
    rows: dict[Path, dict[str, None]] = {}
    for one in plan:
        rows.setdefault(one.path, {})[one.row] = None
    return list(dict.fromkeys(tuple(names) for names in rows.values() if len(names) > 1))


def _planned(
    row: Row,
    composed: tuple[Config, tuple[str, ...]],
    factor: float,
    seed: int,
    parent: Planned | None,
) -> Planned:
    config, overrides = composed
    own = [*overrides]
    update: dict[str, object] = {"seed": seed}
    if factor != 1:
        lr = float(f"{config.optim.lr * factor:.6g}")
        update["optim"] = config.optim.model_copy(update={"lr": lr})
        own.append(f"optim.lr={lr}")
    if parent is not None:
        update["start"] = config.start.model_copy(update={"run": str(parent.path)})
        own.append(f"start.run={quoted(parent.path)}")
    own.append(f"seed={seed}")
    return Planned(row.name, config.model_copy(update=update), tuple(own), parent)
