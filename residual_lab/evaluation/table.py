"""The table of ``residual-lab eval``: a row for each run, a column for each number."""

from collections.abc import Sequence

from residual_lab.config.data import ImageDataConfig, LinearMapConfig, TextDataConfig
from residual_lab.errors import LabError
from residual_lab.evaluation.harness import Harness, Score
from residual_lab.evaluation.losses import losses, on_data, on_images
from residual_lab.evaluation.trained import Trained
from residual_lab.measure.environment import describe_devices
from residual_lab.tables.grouping import group_runs
from residual_lab.tables.metrics import METRICS, metric_named
from residual_lab.tables.numbers import DASH, fixed
from residual_lab.tables.runs import Run
from residual_lab.tables.statistics import spread
from residual_lab.tables.table import Cell, Column, Table
from residual_lab.training.final import own_tokenizer

# What a loss is a mean of, by the kind of data.
_LOSSES: dict[type, str] = {
    TextDataConfig: "nats per token of the run's own tokenizer",
    ImageDataConfig: "nats per image",
    LinearMapConfig: "the squared error, the mean over features and examples",
}


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
    losses_of: dict[str, None] = {}
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
            losses_of[_LOSSES[type(trained.config.data)]] = None
            precision = trained.config.hardware.precision
            devices[f"{describe_devices(trained.device, 1)}, {precision}"] = None
    if not rows:
        raise LabError(*problems)
    keys = list(dict.fromkeys(key for numbers in found for key in numbers))
    titles = {metric.key: metric.title for metric in METRICS}
    columns = (
        Column("residual", "residual"),
        Column("seed", "seed", "right"),
        *(Column(key, titles.get(key, key), "right") for key in keys),
    )
    cells = tuple(
        (*row, *(numbers.get(key, Cell(DASH)) for key in keys))
        for row, numbers in zip(rows, found, strict=True)
    )
    notes = _notes(list(losses_of), data, harness, list(devices))
    return Table("", columns, cells, notes), problems


def _numbers(trained: Trained, data: Sequence[str], harness: Harness | None) -> dict[str, Cell]:
    """By column. Raises LabError."""
    config, own = trained.config, None
    if harness is not None or (data and not isinstance(config.data, ImageDataConfig)):
        assert trained.decoder is not None  # refuses models that read no text
        own = own_tokenizer(trained.run)
    if data:
        config = on_images(config, data) if own is None else on_data(config, data, own)
    numbers = {
        key: Cell(metric_named(key).text(spread([value])), value)
        for key, value in losses(trained, config).items()
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


def _notes(
    losses_of: Sequence[str], data: Sequence[str], harness: Harness | None, devices: Sequence[str]
) -> tuple[str, ...]:
    where = f" Data: {' '.join(data)}." if data else ""
    return (
        f"Loss is {' or '.join(losses_of)}, over the whole validation and test sets.{where}",
        *(() if harness is None else harness.notes),
        f"Computed on {'; '.join(devices)}.",
    )
