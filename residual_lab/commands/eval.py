"""``residual-lab eval``: losses and downstream tasks of finished runs."""

import sys
from pathlib import Path

from residual_lab.commands.table import paths_and_options
from residual_lab.costs.arguments import Arguments
from residual_lab.errors import LabError
from residual_lab.tables import FORMATS, render
from residual_lab.tables.render import format_for
from residual_lab.tables.runs import Run, read_runs

OPTIONS = ("data", "tasks", "limit", "format", "out")

USAGE = f"""\
usage: residual-lab eval RUNS... [data=CHOICE] [data.KEY=VALUE]... [tasks=NAME,NAME [limit=N]]
                                 [format=FORMAT] [out=PATH]

The losses of finished runs again, from their final weights, on the whole validation and test
sets of their own data or of another corpus; and downstream tasks. A row for each run.

RUNS      finished runs: run directories, or folders that are searched to any depth
CHOICE    another corpus, as of `residual-lab train`, read with each run's own tokenizer and
          length of sequence; or other images of the same classes. KEYs alone change the run's
          own data
NAME      tasks, groups or tags of lm-eval (pip install 'residual-lab[evaluation]'), or a YAML
          file of a task
N         the first N documents of each task only
FORMAT    {", ".join(FORMATS)}; default: by the ending of PATH, otherwise rich
PATH      write the table to this file

examples:
  residual-lab eval runs
  residual-lab eval runs data=text data.path=notes data.test_tokens=null
  residual-lab eval runs/resnet50-* data.path=/data/imagenet
  residual-lab eval runs/gpt2_124m-* tasks=lambada_openai,piqa limit=500

Exit status: 0, or 1 if a run was left out."""


def main(arguments: list[str]) -> int:
    if not arguments or "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0 if arguments else 2
    data = [a for a in arguments if _is_override(a)]
    paths, options = paths_and_options([a for a in arguments if a not in data], OPTIONS)
    tasks = [name for name in options.get("tasks", "").split(",") if name]
    limit = Arguments(options, ()).whole_number("limit", None)
    if ("tasks" in options or limit is not None) and not tasks:
        raise LabError("tasks=: name tasks, as in tasks=lambada_openai,piqa")
    format_for(options.get("format"), options.get("out"))  # refuses before hours of work
    runs, problems = _finished(paths)

    from residual_lab.evaluation.table import evaluate  # imports torch

    table, failed = evaluate(runs, data, tasks, limit)
    for problem in [*problems, *failed]:
        print(problem, file=sys.stderr)
    render(table, options.get("format"), options.get("out"))
    return 1 if problems or failed else 0


def _is_override(argument: str) -> bool:
    key, equals, _ = argument.partition("=")
    is_path = Path(argument).exists()
    return bool(equals) and (key == "data" or key.startswith("data.")) and not is_path


def _finished(paths: list[str]) -> tuple[list[Run], list[str]]:
    """The finished runs, and a line for each other one. Raises LabError where there is none."""
    runs, problems = read_runs(paths)
    finished = [run for run in runs if run.status == "finished"]
    problems += [f"{run.path}: {run.status}; left out" for run in runs if run not in finished]
    if not finished:
        raise LabError(*(problems or [f"{' '.join(paths)}: no runs there; name run directories"]))
    return finished, problems
