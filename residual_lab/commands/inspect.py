"""``residual-lab inspect``: learned weights over depth, of finished runs, as pictures."""

import sys
from collections.abc import Sequence
from pathlib import Path

from residual_lab.commands.table import paths_and_options
from residual_lab.errors import LabError
from residual_lab.files import check_writable
from residual_lab.tables import FORMATS, render
from residual_lab.tables.grouping import group_runs
from residual_lab.tables.render import format_for
from residual_lab.tables.runs import Run, read_runs

OPTIONS = ("out", "format")

USAGE = f"""\
usage: residual-lab inspect RUNS... [out=DIR] [format=FORMAT]

What trained models look like over depth: the connection's own weights, by layer or as maps of
its sums over depth, and the cosine similarity of the stream to the token's embedding. Draws them,
as PNG and SVG, and prints the numbers by layer. Seeds of one configuration are aggregated.

RUNS      finished runs: run directories, or folders that are searched to any depth
DIR       the folder for the pictures; default: RUN/pictures, of several runs pictures
FORMAT    of the table: {", ".join(FORMATS)}; default rich

Made from inspection.json in each run directory. A run without one gets it from its final
weights, checkpoints/final.pt, on the CPU; without cosines where its data is not there."""


def main(arguments: list[str]) -> int:
    if not arguments or "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0 if arguments else 2
    paths, options = paths_and_options(arguments, OPTIONS)
    runs, unreadable = read_runs(paths)
    for problem in unreadable:
        print(problem, file=sys.stderr)
    finished = [run for run in runs if run.status == "finished"]
    if not finished:
        raise LabError(f"{' '.join(paths)}: no finished run there; name run directories")
    folder = _folder(finished, options.get("out"))
    format_for(options.get("format"), None)
    check_writable(folder / "cosine.png")
    _complete([run for run in finished if not run.inspection])
    from residual_lab.tables.depth_table import depth_table  # these import matplotlib or numpy
    from residual_lab.tables.plots import draw_depth

    groups = group_runs(finished)
    render(depth_table(groups), options.get("format"))
    for file in draw_depth(groups, folder):
        print(file, file=sys.stderr)
    return 1 if unreadable else 0


def _folder(runs: Sequence[Run], out: str | None) -> Path:
    if out is not None:
        if not out:
            raise LabError("out=: empty; name the folder to draw the pictures into")
        return Path(out)
    return runs[0].path / "pictures" if len(runs) == 1 else Path("pictures")


def _complete(runs: Sequence[Run]) -> None:
    """Make inspection.json of runs that have none, in their directories."""
    without = [run for run in runs if not (run.path / "checkpoints" / "final.pt").is_file()]
    if without:
        raise LabError(
            *(
                f"{run.path}: no inspection.json, and no checkpoints/final.pt to make it from; "
                "copy one of them there, or train the run anew"
                for run in without
            )
        )
    for run in runs:
        from residual_lab.run_directory import RunDirectory
        from residual_lab.training.inspection import inspect_final, write

        directory = RunDirectory.open(run.path)
        inspection, problem = inspect_final(directory)
        if problem is not None:
            print(f"{run.path}: no cosines: {problem}", file=sys.stderr)
        try:
            write(run.path, inspection)
        except OSError as error:
            raise LabError(
                f"{run.path}: inspection.json cannot be written ({error.strerror}); "
                "change its permissions, or copy the run"
            ) from None
        vars(run).pop("inspection", None)  # read it anew
