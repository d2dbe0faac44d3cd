"""The short table at the end of a run, beside the plain run of the same configuration."""

from pathlib import Path

from residual_lab.errors import LabError
from residual_lab.tables.grouping import Settings, settings_of
from residual_lab.tables.metrics import METRICS, Metric, comparable
from residual_lab.tables.notes import STEP_TIMES
from residual_lab.tables.numbers import DASH, fixed, percentage
from residual_lab.tables.runs import Run, read_runs
from residual_lab.tables.statistics import spread
from residual_lab.tables.table import Cell, Column, Table

_TITLES = {
    "params": "parameters",
    "val_loss": "validation loss",
    "test_loss": "test loss",
    "perplexity": "perplexity",
    "val_accuracy": "validation accuracy [%]",
    "test_accuracy": "test accuracy [%]",
    "test_top5_accuracy": "test top-5 accuracy [%]",
    "peak_memory_bytes": "peak memory [GiB]",
    "step_time_s": "median step time [s]",
}


def summary(run_path: str | Path) -> Table:
    """One line a quantity, for the run and for ``plain``: same configuration and seed, same folder.

    Raises LabError when ``run_path`` is no run directory or cannot be read.
    """
    runs, unreadable = read_runs([run_path])
    if len(runs) != 1:
        raise LabError(*(unreadable or [f"{run_path}: not a run directory; name one"]))
    run = runs[0]
    plain = _plain_beside(run)
    columns = [Column("quantity", ""), Column("run", str(run.config["residual"]["name"]), "right")]
    if plain is not None:
        columns += [Column("plain", "plain", "right"), Column("change", "change", "right")]
    metrics = {metric.key: metric for metric in METRICS}
    rows = [
        (Cell(title, key), *_cells(metrics[key], run, plain))
        for key, title in _TITLES.items()
        if metrics[key].value(run) is not None
    ]
    return Table(f"{run.path.name}: {run.status}", tuple(columns), tuple(rows), _notes(run, plain))


def _plain_beside(run: Run) -> Run | None:
    if run.config["residual"]["name"] == "plain":
        return None
    folder = run.path.absolute().parent
    candidates, _ = read_runs(path for path in folder.glob("*plain*") if path.is_dir())
    wanted = (run.seed, _without_residual(run))
    for candidate in candidates:
        is_plain = candidate.config["residual"]["name"] == "plain"
        same = (candidate.seed, _without_residual(candidate)) == wanted
        if is_plain and same and candidate.status == "finished":
            return candidate
    return None


def _without_residual(run: Run) -> Settings:
    settings = settings_of(run.config)
    return {key: value for key, value in settings.items() if not key.startswith("residual.")}


def _cells(metric: Metric, run: Run, plain: Run | None) -> list[Cell]:
    """The run, plain, and the change: relative for costs, absolute for losses."""
    own, base = metric.value(run), None if plain is None else metric.value(plain)
    cells = [_cell(metric, own)]
    if plain is not None:
        cells += [_cell(metric, base), _change(metric, own, base, comparable(metric, (run, plain)))]
    return cells


def _cell(metric: Metric, value: float | None) -> Cell:
    return Cell(DASH) if value is None else Cell(metric.text(spread([value])), value)


def _change(metric: Metric, own: float | None, base: float | None, meaningful: bool) -> Cell:
    if own is None or base is None or not meaningful:
        return Cell(DASH)
    if metric.relative:
        return Cell(percentage(own / base - 1), own / base - 1)
    return Cell(fixed((own - base) / metric.unit, metric.places, sign=True), own - base)


def _notes(run: Run, plain: Run | None) -> tuple[str, ...]:
    notes = []
    if run.result.get("error"):
        notes.append(str(run.result["error"]))
    if plain is not None:
        notes.append("One seed is no evidence: train more and compare with residual-lab table.")
        notes.append(STEP_TIMES)
    elif run.config["residual"]["name"] != "plain":
        notes.append(
            "No plain run of this configuration and seed beside it; residual=plain makes it."
        )
    return tuple(notes)
