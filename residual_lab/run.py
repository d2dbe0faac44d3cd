"""Execute one run directory: ``python -m residual_lab.run DIR [--devices N]``.

The only thing that trains. It knows nothing of how the configuration was composed, and works the
same when torchrun, SLURM or Lightning starts it several times, a process for each device.
Exit status: 0 finished, 1 failed, 2 refused, 3 diverged; 130 and 143 stopped by Ctrl-C or
SIGTERM, to be resumed.
"""

import argparse
import faulthandler
import logging
import os
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import IO

from rich.console import Console

from residual_lab.errors import LabError
from residual_lab.run_directory import RunDirectory

log = logging.getLogger(__name__)

FINISHED, FAILED, REFUSED, DIVERGED = 0, 1, 2, 3


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        run = RunDirectory.open(options.directory)
        first = process_rank() == 0
        with run.lock() if first else nullcontext():
            earlier = run.result
            status = (earlier or {}).get("status")
            if first and status in ("finished", "diverged"):
                print(f"{status}: {run.path}")
                return FINISHED if status == "finished" else DIVERGED
            with run.log.open("a", encoding="utf-8") as file:
                try:
                    exit_status = _run(run, options.devices, first, file)
                finally:
                    logging.getLogger().handlers.clear()  # they write to the file that closes
            if first and exit_status == REFUSED and earlier is not None:
                run.write_result(earlier)  # that of an attempt that failed still stands
            return exit_status
    except LabError as error:
        print(error, file=sys.stderr)
        return REFUSED


def _run(run: RunDirectory, devices: int | None, first: bool, log_file: IO[str]) -> int:
    """Execute with a log; whatever goes wrong is in it, with its traceback."""
    console = _set_up_logging(log_file, first)
    parent = os.getppid()
    if first:
        (run.path / "result.json").unlink(missing_ok=True)  # of an attempt that failed
    # Not on the terminal: what is refused at once is one line there.
    log.info("run %s in process %d", run.path, os.getpid(), extra={"in_file_only": True})
    from residual_lab.training.execution import execute
    from residual_lab.training.stopping import Interrupted, StopSignals

    _quiet_lightning()

    signals = StopSignals()
    signals.install()
    try:
        status = execute(run, devices=devices, first=first, signals=signals, console=console)
        log.info("%s: %s", "finished" if status == FINISHED else "diverged", run.path)
    except Interrupted as interruption:
        log.warning("%s", interruption)
        status = interruption.exit_status
    except LabError as error:
        for problem in error.problems:
            log.error("%s", problem)
        status = REFUSED
    except Exception as error:
        log.exception("failed: %s", run.path)
        # The first failure counts: it makes the other processes fail. One whose first process was
        # killed is no failure of the run's.
        if run.result is None and (first or _is_alive(parent)):
            _write_failure(run, error)
        return FAILED
    # Lightning's first process kills all when another ends with a status other than 0.
    return status if first else FINISHED


def _is_alive(parent: int) -> bool:
    """Whether the process that started this one is neither gone nor going.

    A killed process closes its connections before its children see that it is gone.
    """
    try:
        status = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8")
        flags = int(status.rpartition(")")[2].split()[6])
    except OSError:  # gone, or not Linux
        flags = 0
    exiting = flags & 0x4  # the kernel's PF_EXITING
    return os.getppid() == parent and not exiting


def _write_failure(run: RunDirectory, error: Exception) -> None:
    from residual_lab.training.result import identity

    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    run.write_result({**identity(run), "status": "failed", "error": lines[0]})


def process_rank() -> int:
    """0 for the process that keeps the run directory; torchrun, SLURM or Lightning number them."""
    names = ["RANK"] if "RANK" in os.environ else ["LOCAL_RANK", "NODE_RANK"]
    if int(os.environ.get("SLURM_NTASKS", 1)) > 1 and "LOCAL_RANK" not in os.environ:
        names.append("SLURM_PROCID")
    return max(int(os.environ.get(name, 0)) for name in names)


def _set_up_logging(log_file: IO[str], first: bool) -> Console | None:
    """Everything goes to the log file; the first process also tells the terminal.

    Returns the console for a progress bar, of the first process.
    """
    faulthandler.enable(log_file)
    rank = "" if first else f"[process {process_rank()}] "
    in_file = logging.StreamHandler(log_file)
    in_file.setFormatter(logging.Formatter(f"%(asctime)s {rank}%(levelname)s %(message)s"))
    handlers: list[logging.Handler] = [in_file]
    console = Console() if first else None
    if console is not None:
        handlers += [_Terminal(console), _errors()]
    for handler in handlers[1:]:
        handler.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=handlers, force=True)
    logging.captureWarnings(True)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*`isinstance\\(treespec, LeafSpec\\)` is deprecated.*")
    return console


def _quiet_lightning() -> None:
    """Its handlers would print all that ours print once more; its notes are no news to us."""
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.WARNING)


class _Terminal(logging.Handler):
    """Lines below the level of errors, above the progress bar while there is one."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console
        self.addFilter(lambda record: record.levelno < logging.ERROR)
        self.addFilter(lambda record: not hasattr(record, "in_file_only"))

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), markup=False, highlight=False, soft_wrap=True)


def _errors() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    return handler


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m residual_lab.run", description=__doc__)
    parser.add_argument("directory", help="a run directory, made by `residual-lab train`")
    parser.add_argument(
        "--devices", type=int, metavar="N", help="go on with so many processes a node"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
