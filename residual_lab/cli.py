"""The command line: ``residual-lab COMMAND ...``.

A command is a module of :mod:`residual_lab.commands` with ``main(arguments) -> exit status``.
It is imported only when it is asked for, so that help costs neither torch nor Hydra.
"""

import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

from residual_lab.errors import LabError, suggestion

COMMANDS = {
    "train": "train one configuration, or a sweep of them with -m",
    "reproduce": "a paper's table: run it, and print it beside the paper's numbers",
    "table": "a comparison table of finished runs",
    "inspect": "learned weights over depth of finished runs, as pictures",
    "eval": "losses and downstream tasks of finished runs, on any corpus",
    "generate": "text from a finished run",
    "estimate": "parameters, FLOPs and memory of any size, without its hardware",
    "bench": "time and memory of several connections, side by side, without data",
    "list": "what there is to choose from: residuals, models, data, ...",
    "completion": "a script that completes commands, groups and keys in your shell",
}

EXAMPLES = """\
examples:
  residual-lab train residual=laurel_rw+lr
  residual-lab train -m residual=plain,laurel_rw seed=0,1,2
  residual-lab reproduce laurel/c4_ablation
  residual-lab table runs
  residual-lab inspect runs/desk-denseformer-*
  residual-lab eval runs data=text data.path=notes
  residual-lab generate runs/desk-plain-python_source-s0-6ef91b14 prompt="def main("
  residual-lab list residuals model=nanodo_157m
  residual-lab bench residual=plain,laurel_rw
  residual-lab estimate model=nanodo_157m residual=plain,laurel_rw batch=16 sequence=512

`residual-lab COMMAND --help` says more. Exit status: 0 done, 1 failed, 2 refused,
3 diverged, 128 + n stopped by signal n (the same command resumes)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status. Reads ``sys.argv``, and never changes it."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        return in_one_line(_show_usage, [])
    if arguments[0] == "--version":
        from residual_lab import __version__

        print(f"residual-lab {__version__}")
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        near = suggestion(command, COMMANDS)
        print(
            f"{command}: no such command{near} (there are {', '.join(COMMANDS)})", file=sys.stderr
        )
        return 2

    def imported(arguments: list[str]) -> int:
        status: int = importlib.import_module(f"residual_lab.commands.{command}").main(arguments)
        return status

    return in_one_line(imported, rest)


def in_one_line(command: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Return the exit status of ``command``; what a user can act on is one line, no traceback."""
    try:
        status = command(arguments)
        sys.stdout.flush()
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).rpartition("Allocator: ")[2].partition("\n")[0] or "out of memory"
        print(f"{reason}; take a smaller batch, sequence or model", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader, such as `head`, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return status


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was refused, on the CPU, where torch has no class for it, or on a device."""
    refusals = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(text in str(error) for text in refusals)


def _show_usage(_: list[str]) -> int:
    print(usage())
    return 0


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "usage: residual-lab COMMAND [arguments]",
            "",
            "Does this residual connection really help, and what does it cost?",
            "",
            "commands:",
            *lines,
            "",
            EXAMPLES,
        ]
    )
