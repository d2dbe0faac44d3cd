"""The table of ``residual-lab eval``: a row for each run, a column for each number."""

from collections.abc import Sequence

from residual_lab.errors import LabError
from residual_lab.evaluation.harness import Harness, Score
from residual_lab.evaluation.losses import losses, on_data
from residual_lab.evaluation.trained import Trained
from residual_lab.measure.environment import describe_devices
from residual_lab.tables.grouping import group_runs
from residual_lab.tables.numbers import DASH, fixed, significant
from residual_lab.tables.runs import Run
from residual_lab.tables.table import Cell, Column, Table
from residual_lab.training.final import own_tokenizer

_TITLES = {"val_loss": "val loss", "test_loss": "test loss", "perplexity": "perplexity"}


def evaluate(
    runs: Sequence[Run], data: Sequence[str], tasks: Sequence[str], limit: int | None
) -> tuple[Table, list[str]]:
    """Evaluate ``runs``; return their table, and a line for each that could not be.

    ``data`` are overrides of the data, see :func:`~residual_lab.evaluation.losses.on_data`;
    ``tasks`` are lm-eval's, ``limit`` documents of each. Raises LabError where no run could be
    evaluated, and for what is wrong with the tasks.
    """
    harness = Harness(tasks, limit) if tasks else None
    rows: list[tuple[Cell, ...]] = []
    found: list[dict[str, Cell]] = []
    problems: list[str] = []
    devices: dict[str, None] = {}
    for group in group_runs(runs):
        for run in group.runs:
            try:
                trained = Trained.load(run.path)
                found.append(_numbers(trained, data, harness))
            except LabError as error:
                of = f"{run.path}: "
                problems += [p if p.startswith(str(run.path)) else of + p for p in error.problems]
                continue
            rows.append((Cell(group.label, group.label), Cell(str(run.seed), run.seed)))
            precision = trained.config.hardware.precision
            devices[f"{describe_devices(trained.device, 1)}, {precision}"] = None
    if not rows:
        raise LabError(*problems)
    keys = list(dict.fromkeys(key for numbers in found for key in numbers))
    columns = (
        Column("residual", "residual"),
        Column("seed", "seed", "right"),
        *(Column(key, _TITLES.get(key, key), "right") for key in keys),
    )
    cells = tuple(
        (*row, *(numbers.get(key, Cell(DASH)) for key in keys))
        for row, numbers in zip(rows, found, strict=True)
    )
    return Table("", columns, cells, _notes(data, harness, list(devices))), problems


def _numbers(trained: Trained, data: Sequence[str], harness: Harness | None) -> dict[str, Cell]:
    """By column. Raises LabError."""
    config, own = trained.config, None
    if data or harness is not None:
        assert trained.decoder is not None  # refuses models that read no text
        own = own_tokenizer(trained.run)
        if data:
            config = on_data(trained.config, data, own)
    numbers = {
        key: Cell(significant(value, 5), value) for key, value in losses(trained, config).items()
    }
    if harness is not None and own is not None:
        for score in harness.scores(trained, own):
            numbers[f"{score.task} {score.metric}"] = _cell(score)
    return numbers


def _cell(score: Score) -> Cell:
    text = fixed(score.value, 4)
    if score.standard_error is None:
        return Cell(text, score.value)
    error = score.standard_error
    return Cell(f"{text} ± {fixed(error, 4)}", score.value, {"standard_error": error})


def _notes(data: Sequence[str], harness: Harness | None, devices: Sequence[str]) -> tuple[str, ...]:
    where = f" Data: {' '.join(data)}." if data else ""
    return (
        "Loss is nats per token of the run's own tokenizer, over the whole validation and test "
        f"sets.{where}",
        *(() if harness is None else harness.notes),
        f"Computed on {'; '.join(devices)}.",
    )
