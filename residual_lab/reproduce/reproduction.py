"""A table from end to end: run what is missing, measure, and write what came out."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from residual_lab.files import write_output
from residual_lab.reproduce.arguments import Asked
from residual_lab.reproduce.matching import matched_layers
from residual_lab.reproduce.plan import Planned, compose_rows, plan, rows_of
from residual_lab.reproduce.report import report
from residual_lab.reproduce.report_table import report_table
from residual_lab.reproduce.results import Results, results
from residual_lab.reproduce.running import keep, run_missing
from residual_lab.reproduce.timing import Timing, timing
from residual_lab.tables.comparison import Comparison
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.plots import draw_rows, draw_sensitivity
from residual_lab.tables.render import as_text
from residual_lab.tables.table import Table

ENDINGS = {"md": "table.md", "csv": "table.csv", "latex": "table.tex", "json": "table.json"}


def reproduce(asked: Asked) -> tuple[int, Table]:
    """Return the exit status of the runs and the table of those that came to an end.

    Files in ``asked.out``: the table in every format, report.md, pictures/, the step times of
    all rows, and runs/ with the small files of every run.
    """
    deeper: tuple[str, ...] = ()
    if asked.match is not None:
        solved = matched_layers(asked)
        asked = replace(asked, choices=replace(asked.choices, layers=solved.layers))
        deeper = solved.notes
    planned = plan(asked.table, asked.choices)
    kept, status = asked.out / "runs", 0
    if asked.only is None:
        group = f"{asked.table.name}-{asked.choices.scale}"
        folder = Path(planned[0].config.run.dir) / "sweeps" / group.replace("/", "-")
        status = run_missing(planned, kept, folder, asked.launcher, group)
    keep(planned, kept)
    found = results(asked.table, asked.choices.scale, planned, kept)
    rounds = asked.rounds if asked.only is None and status <= 128 else 0
    times = _times(asked, found, rounds)
    notes = (*deeper, *_about_tuning(asked, found), f"Command: {asked.command}")
    table = report_table(asked.table, asked.choices.scale, found, times, notes)
    write(asked, planned, found, table)
    return status, table


def _times(asked: Asked, found: Results, rounds: int) -> Timing | None:
    """Those of the rows that finished: of another, one cannot know that it runs at all."""
    finished = {
        row.name for row, ours in zip(found.of_file, found.rows, strict=True) if ours.group.finished
    }
    rows = [row for row in rows_of(asked.table, asked.choices) if row.name in finished]
    if not rows:
        return None
    composed = compose_rows(asked.table, rows, asked.choices)
    configs = {name: config for name, (config, _) in composed.items()}
    return timing(configs, asked.out / "step_times.json", rounds)


def write(asked: Asked, planned: Sequence[Planned], found: Results, table: Table) -> None:
    """The table in every format, the pictures and the report; and W&B's copy if it is asked for."""
    for format, name in ENDINGS.items():
        write_output(asked.out / name, as_text(table, format))
    metric = metric_named(asked.table.metric)
    pictures = asked.out / "pictures"
    files = draw_rows(found.rows, pictures, metric, asked.table.axis, asked.table.grid)
    if len(asked.choices.lr_factors) > 1:
        files += draw_sensitivity(found.tried, pictures, metric)
    text = report(asked, planned, found, table, files)
    write_output(asked.out / "report.md", text)
    if planned[0].config.logger.name == "wandb":
        from residual_lab.reproduce.wandb_summary import log_summary

        log_summary(asked, planned[0].config.logger, table, files)


def _about_tuning(asked: Asked, found: Results) -> list[str]:
    """Every row had the same grid; where each was best, and which ended at the grid's edge."""
    factors = asked.choices.lr_factors
    if len(factors) == 1:
        return []
    rates: dict[str, set[float]] = {}
    for one in found.tried:
        rates.setdefault(one.group.label, set()).add(_rate(one))
    best = []
    for ours in found.rows:
        own = rates[ours.group.label]
        edge = ", the edge of the grid" if _rate(ours) in (min(own), max(own)) else ""
        best.append(f"{ours.group.label} {_rate(ours):g}{edge}")
    return [
        f"Learning rates: every row was trained at {', '.join(f'{f:g}' for f in factors)} times "
        "its own, with all seeds, and is reported at the one with the best validation loss, so "
        f"that test losses are not chosen: {'; '.join(best)}."
    ]


def _rate(row: Comparison) -> float:
    return float(str(row.group.settings["optim.lr"]))
