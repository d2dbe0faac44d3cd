"""``residual-lab table``: a comparison table, and pictures, from finished runs."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from residual_lab.errors import LabError, suggestion
from residual_lab.tables import FORMATS, compare, render
from residual_lab.tables.metrics import METRICS
from residual_lab.tables.runs import read_runs

OPTIONS = ("format", "out", "baseline", "metric", "plots")

USAGE = f"""\
usage: residual-lab table RUNS... [baseline=ROW] [metric=METRIC] [format=FORMAT] [out=PATH]
                                  [plots=DIR]

Compare runs: one row for each configuration, its seeds aggregated, with the difference to a
baseline and what it costs. RUNS are run directories or folders, searched to any depth.

ROW       the baseline (default plain): a row's label, or a residual with any of its settings,
          as in baseline="plain layers=8"
METRIC    what differences are taken in (default val_loss):
          {", ".join(metric.key for metric in METRICS[:6])},
          {", ".join(metric.key for metric in METRICS[6:])}
FORMAT    {", ".join(FORMATS)}; default: by the ending of PATH, otherwise rich
PATH      write the table to this file
DIR       draw loss curves, cost and differences into this folder, as PNG and SVG

Exit status: 0, or 1 if a run could not be read. docs/tables.md explains the statistics."""


def main(arguments: list[str]) -> int:
    if not arguments or "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0 if arguments else 2
    paths, options = _arguments(arguments)
    runs, unreadable = read_runs(paths)
    for problem in unreadable:
        print(problem, file=sys.stderr)
    if not runs:
        raise LabError(f"{' '.join(paths)}: no runs there; name run directories or their folders")
    baseline, metric = options.get("baseline", "plain"), options.get("metric", "val_loss")
    table = compare(runs, baseline, metric)
    command = f"Command: {shlex.join(['residual-lab', 'table', *arguments])}"
    table = replace(table, notes=(*table.notes, command))
    render(table, options.get("format"), options.get("out"))
    if "plots" in options:
        from residual_lab.tables.plots import draw  # matplotlib is slow to import

        for file in draw(runs, Path(options["plots"]), baseline, metric):
            print(file, file=sys.stderr)
    return 1 if unreadable else 0


def _arguments(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Paths and ``key=value``; a path that exists may hold an equals sign itself."""
    paths: list[str] = []
    options: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if key in OPTIONS and equals:
            options[key] = value
        elif argument.startswith("-") or (equals and not Path(argument).exists()):
            near = suggestion(key.lstrip("-"), OPTIONS)
            choices = ", ".join(f"{option}=" for option in OPTIONS)
            raise LabError(f"{argument}: no such option{near} (there are {choices})")
        else:
            paths.append(argument)
    if not paths:
        raise LabError("RUNS: name run directories, or folders of them")
    return paths, options
