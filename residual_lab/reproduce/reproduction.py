"""A table from end to end: run what is missing, measure, and write what came out."""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from residual_lab.config.schema import Config
from residual_lab.errors import LabError
from residual_lab.files import write_output
from residual_lab.launch import FINISHED
from residual_lab.reproduce.arguments import Asked
from residual_lab.reproduce.matching import matched
from residual_lab.reproduce.plan import Planned, compose_rows, plan, same_runs
from residual_lab.reproduce.report import report
from residual_lab.reproduce.report_table import report_table
from residual_lab.reproduce.results import Results, results
from residual_lab.reproduce.running import exit_status, held, keep, run_missing
from residual_lab.reproduce.timing import Timing, timing
from residual_lab.tables.comparison import Comparison
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.plots import draw_rows, draw_sensitivity
from residual_lab.tables.render import as_text
from residual_lab.tables.table import Table

ENDINGS = {"md": "table.md", "csv": "table.csv", "latex": "table.tex", "json": "table.json"}


def reproduce(asked: Asked) -> tuple[int, Table | None]:
    """Return the exit status of the runs and the table of those that came to an end, if any did.

    Files in ``asked.out``: the table in every format, report.md, pictures/, the step times of
    all rows, and runs/ with the small files of every run. They are written before step times are
    measured, and once more with them.
    Raises LabError where there is nothing to run and no run came to an end, and where another
    process has this table.
    """
    solved: tuple[str, ...] = ()
    kept, measures = asked.out / "runs", asked.only is None and asked.rounds > 0
    with held(asked.out):
        if asked.match is not None:
            choices, solved = matched(asked)
            asked = replace(asked, choices=choices)
        planned = plan(asked.table, asked.choices)
        stopped = 0
        if asked.only is None:
            group = f"{asked.table.name}-{asked.choices.scale}"
            stopped = run_missing(planned, kept, _folder(planned, group), asked.launcher, group)
        keep(planned, kept)
        found = results(asked, planned, kept)
        if not any(row.group.runs for row in found.rows):
            return _nothing_yet(asked.table.name, stopped)
        configs, file = _configs(asked, found), asked.out / "step_times.json"
        times = timing(configs, file, 0)
        table, pictures = _written(asked, planned, found, times, solved)
        if measures and stopped <= 128:
            measured, trouble = _measured(configs, file, asked.rounds)
            if trouble or measured != times:
                further = (*solved, *trouble)
                table, pictures = _written(asked, planned, found, measured, further)
        _mirror(asked, planned[0].config, table, pictures)
        return exit_status(planned, kept, stopped), table


def _nothing_yet(name: str, stopped: int) -> tuple[int, None]:
    problem = f"{name}: no run has come to an end: there is no table yet"
    if stopped == FINISHED:
        raise LabError(problem)
    print(problem, file=sys.stderr)
    return stopped, None


def _folder(planned: Sequence[Planned], group: str) -> Path:
    """Where the jobs of these very runs keep their records."""
    names = "\n".join(sorted(one.path.name for one in planned))
    identity = hashlib.sha256(names.encode()).hexdigest()[:8]
    return Path(planned[0].config.run.dir) / "sweeps" / f"{group.replace('/', '-')}-{identity}"


def _measured(
    configs: Mapping[str, Config], file: Path, rounds: int
) -> tuple[Timing | None, tuple[str, ...]]:
    """The step times, or why there are none: the device may be elsewhere, or too small for all."""
    try:
        return timing(configs, file, rounds), ()
    except (LabError, RuntimeError) as error:  # out of memory is a RuntimeError
        reason = " ".join(str(error).split())[:200]
        return None, (
            f"Step times were not measured: {reason}. The same command measures them where the "
            "device is; rounds=0 leaves them out.",
        )


def _configs(asked: Asked, found: Results) -> dict[str, Config]:
    """Of the rows that finished: of another, one cannot know that it runs at all."""
    pairs = zip(found.of_file, found.rows, strict=True)
    rows = [row for row, ours in pairs if ours.group.finished]
    composed = compose_rows(asked.table, rows, asked.choices)
    return {name: config for name, (config, _) in composed.items()}


def _written(
    asked: Asked,
    planned: Sequence[Planned],
    found: Results,
    times: Timing | None,
    further: Sequence[str],
) -> tuple[Table, list[Path]]:
    """The table, written in every format, and the pictures, which the report shows too."""
    same = [f"One and the same run: {' and '.join(names)}." for names in same_runs(planned)]
    notes = (*further, *same, *_about_tuning(asked, found), f"Command: {asked.command}")
    table = report_table(asked, found, times, notes)
    for format, name in ENDINGS.items():
        write_output(asked.out / name, as_text(table, format))
    metric = metric_named(asked.table.metric)
    pictures = asked.out / "pictures"
    seconds = _seconds(found, times)
    axis, grid = _keys_to_draw(asked, found)
    files = draw_rows(found.rows, pictures, metric, axis, grid, seconds)
    tuned = found.tried if len(asked.choices.lr_factors) > 1 else ()
    files += draw_sensitivity(tuned, pictures, metric)
    write_output(asked.out / "report.md", report(asked, planned, found, table, files))
    return table, files


def _keys_to_draw(asked: Asked, found: Results) -> tuple[str | None, tuple[str, str] | None]:
    """The table's axis and grid where the rows that were chosen have such keys."""
    known = {key for row in found.rows for key in row.group.settings}
    axis, grid = asked.table.axis, asked.table.grid
    return axis if axis in known else None, grid if grid and known.issuperset(grid) else None


def _mirror(asked: Asked, config: Config, table: Table, pictures: Sequence[Path]) -> None:
    """Log a copy to W&B where the runs have theirs there."""
    if config.logger.name == "wandb":
        from residual_lab.reproduce.wandb_summary import log_summary

        log_summary(asked, config.logger, Path(config.run.dir) / "sweeps", table, pictures)


def _seconds(found: Results, times: Timing | None) -> dict[str, float]:
    """Step times by label; none where they were not measured together."""
    if times is None:
        return {}
    pairs = zip(found.of_file, found.rows, strict=True)
    return {o.group.label: times.step_time(r.name) for r, o in pairs if r.name in times.seconds}


def _about_tuning(asked: Asked, found: Results) -> list[str]:
    """Every row had the same grid; where each was best, and which ended at the grid's edge."""
    factors = asked.choices.lr_factors
    if factors == (1.0,):
        return []
    rates: dict[str, set[float]] = {}
    for one in found.tried:
        rates.setdefault(one.group.label, set()).add(_rate(one))
    best = []
    for ours in found.rows:
        if not ours.group.finished:
            continue
        own = rates[ours.group.label]
        edge = ", the edge of the grid" if _rate(ours) in (min(own), max(own)) else ""
        best.append(f"{ours.group.label} {_rate(ours):g}{edge}")
    return [
        f"Learning rates: every row {'is to be' if found.missing else 'was'} trained at "
        f"{', '.join(f'{f:g}' for f in factors)} times its own, with all seeds, and is reported at "
        f"the one with the best validation loss, so that test losses are not chosen: "
        f"{'; '.join(best) or 'none yet'}."
        + " The choice is provisional: runs are missing."
        * bool(found.missing)
    ]


def _rate(row: Comparison) -> float:
    return float(str(row.group.settings["optim.lr"]))
