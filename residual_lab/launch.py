"""Start the process that executes one run directory, wait for it, and stop it when asked."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

FINISHED, FAILED, REFUSED, DIVERGED = 0, 1, 2, 3
"""Exit statuses of a run; 128 + n: stopped by signal n, to be resumed."""

COMMAND = (sys.executable, "-m", "residual_lab.run")

# The run's process has a group of its own, so that a Ctrl-C in the terminal reaches it once,
# through us, and not a second time while it saves.
_FORWARDED = {
    signal.SIGINT: signal.SIGINT,
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGHUP: signal.SIGTERM,
}


def execute(
    directory: Path,
    *,
    environment: Mapping[str, str] | None = None,
    errors: IO[bytes] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> int:
    """Execute the run ``directory`` in a fresh process; return its exit status.

    Its output passes through to the terminal, unless ``errors`` is given: then standard error
    is written there and standard output, the progress bar, nowhere. Without ``should_stop``
    signals are forwarded; with it, it is asked now and then and the run is stopped when true.
    """
    process = subprocess.Popen(
        [*COMMAND, str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=None if errors is None else subprocess.DEVNULL,
        stderr=errors,
        env=environment,
        process_group=0,
        preexec_fn=_stop_with_parent() if sys.platform == "linux" else None,
    )
    if should_stop is None:
        with _forwarding(process):
            status = process.wait()
    else:
        status = _wait(process, should_stop)
    return status if status >= 0 else 128 - status


def why_stopped(status: int) -> str:
    """In words, of an exit status above 128."""
    number = status - 128
    if number in (signal.SIGINT, signal.SIGTERM):
        return "stopped"
    return f"killed by signal {number}{' (often: out of memory)' * (number == signal.SIGKILL)}"


def _wait(process: "subprocess.Popen[bytes]", should_stop: Callable[[], bool]) -> int:
    asked = False
    while True:
        try:
            return process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            if not asked and should_stop():
                process.send_signal(signal.SIGTERM)
                asked = True


@contextmanager
def _forwarding(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    def forward(number: int, _: Any) -> None:
        process.send_signal(_FORWARDED[signal.Signals(number)])

    with handled(_FORWARDED, forward):
        yield


@contextmanager
def handled(numbers: Any, handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Install ``handler`` for the signals ``numbers``, but for those that are ignored (nohup)."""
    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _stop_with_parent() -> Callable[[], None]:
    """What a child calls so that Linux sends it SIGTERM when this process is killed."""
    set_option = ctypes.CDLL(None).prctl
    parent_death_signal = 1
    return lambda: set_option(parent_death_signal, signal.SIGTERM) and None
