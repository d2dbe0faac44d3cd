"""``residual-lab table``: a comparison table, and pictures, from finished runs."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from residual_lab.errors import LabError, suggestion
from residual_lab.files import check_writable
from residual_lab.tables import FORMATS, compare, render
from residual_lab.tables.grouping import check_keys, settings_of
from residual_lab.tables.metrics import METRICS
from residual_lab.tables.runs import read_runs

OPTIONS = ("format", "out", "baseline", "metric", "plots", "axis", "grid")

USAGE = f"""\
usage: residual-lab table RUNS... [baseline=ROW] [metric=METRIC] [format=FORMAT] [out=PATH]
                                  [plots=DIR [axis=KEY] [grid=KEY,KEY]]

Compare runs: one row for each configuration, its seeds aggregated, with the difference to a
baseline and what it costs. RUNS are run directories, folders that are searched to any depth, or
the folder of a sweep, runs/sweeps/ID, which stands for its runs.

ROW       the baseline (default plain): a row's label, or a residual with any of its settings,
          as in baseline="plain layers=8"
METRIC    what differences are taken in (default val_loss):
          {", ".join(metric.key for metric in METRICS[:6])},
          {", ".join(metric.key for metric in METRICS[6:])}
FORMAT    {", ".join(FORMATS)}; default: by the ending of PATH, otherwise rich
PATH      write the table to this file
DIR       draw loss curves, cost, differences and weights over depth into this folder, as PNG
          and SVG; with axis= also the metric against a key, as in axis=model.width, with grid=
          its map over two, as in grid=residual.dilation,residual.period

Exit status: 0, or 1 if a run could not be read. docs/tables.md explains the statistics."""


def main(arguments: list[str]) -> int:
    if not arguments or "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0 if arguments else 2
    paths, options = paths_and_options(arguments, OPTIONS)
    axis, grid = options.get("axis"), _two_keys(options.get("grid"))
    if (axis or grid) and "plots" not in options:
        raise LabError("axis= and grid= are pictures: name a folder for them with plots=DIR")
    if "plots" in options:
        check_writable(Path(options["plots"]) / "cost.png")
    runs, unreadable = read_runs(paths)
    for problem in unreadable:
        print(problem, file=sys.stderr)
    if not runs:
        raise LabError(f"{' '.join(paths)}: no runs there; name run directories or their folders")
    baseline, metric = options.get("baseline", "plain"), options.get("metric", "val_loss")
    check_keys(
        (settings_of(run.config) for run in runs), [*([axis] if axis else ()), *(grid or ())]
    )
    table = compare(runs, baseline, metric)
    command = f"Command: {shlex.join(['residual-lab', 'table', *arguments])}"
    table = replace(table, notes=(*table.notes, command))
    render(table, options.get("format"), options.get("out"))
    if "plots" in options:
        from residual_lab.tables.plots import draw  # matplotlib is slow to import

        for file in draw(runs, Path(options["plots"]), baseline, metric, axis, grid):
            print(file, file=sys.stderr)
    return 1 if unreadable else 0


def _two_keys(grid: str | None) -> tuple[str, str] | None:
    if grid is None:
        return None
    keys = grid.split(",")
    if len(keys) != 2 or not all(keys):
        raise LabError(f"grid={grid}: name two keys, as in grid=residual.dilation,residual.period")
    return keys[0], keys[1]


def paths_and_options(
    arguments: Sequence[str], known: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Paths of runs, and ``key=value`` of ``known`` keys.

    A path that exists may hold an equals sign itself. Raises LabError for another key, and where
    there is no path.
    """
    paths: list[str] = []
    options: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in known and equals:
            options[key] = value
        elif argument.startswith("-") or (equals and not Path(argument).exists()):
            near = suggestion(key.lstrip("-"), known)
            choices = ", ".join(f"{option}=" for option in known)
            raise LabError(f"{argument}: no such option{near} (there are {choices})")
        else:
            paths.append(argument)
    if not paths:
        raise LabError("RUNS: name run directories, or folders of them")
    return paths, options
