"""The process of one run: its exit status, and the signals that reach it."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from residual_lab import launch

# Stands in for a run: says how far it is on a pipe, and saves when it is told to stop.
CHILD = """
import os, signal, sys
path = sys.argv[1]
def stop(number, _):
    open(path, "a").write(f"saved after {number}\\n")
    sys.exit(128 + number)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
open(path, "a").write("ready\\n")
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(launch, "COMMAND", (sys.executable, "-c", code))


@pytest.mark.parametrize("status", [0, 1, 2, 3])
def test_the_exit_status_is_the_runs(
    status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, f"raise SystemExit({status})")
    assert launch.execute(tmp_path) == status


def test_a_killed_run_has_the_shells_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stand_in(monkeypatch, "import os; os.kill(os.getpid(), 9)")
    assert launch.execute(tmp_path) == 128 + 9


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (130, "stopped"),
        (143, "stopped"),
        (137, "killed by signal 9 (often: out of memory)"),
        (139, "killed by signal 11"),
    ],
)
def test_why_a_run_stopped(status: int, words: str) -> None:
    assert launch.why_stopped(status) == words


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_signals_are_forwarded_and_waited_for(
    sent: int, received: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    signals_us = f"os.kill(os.getppid(), {int(sent)})\nsignal.pause()"
    stand_in(monkeypatch, CHILD + signals_us)
    before = signal.getsignal(sent)
    assert launch.execute(tmp_path / "log") == 128 + received
    assert (tmp_path / "log").read_text() == f"ready\nsaved after {int(received)}\n"
    assert signal.getsignal(sent) == before


def test_it_stops_when_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in(monkeypatch, CHILD + "signal.pause()")
    ready = (tmp_path / "log").exists
    assert launch.execute(tmp_path / "log", should_stop=ready) == 128 + signal.SIGTERM


def test_errors_are_kept_and_the_progress_bar_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, "import sys; print('bar'); print('why', file=sys.stderr)")
    with tempfile.TemporaryFile() as errors:
        launch.execute(tmp_path, errors=errors)
        errors.seek(0)
        assert errors.read() == b"why\n"
    assert capfd.readouterr() == ("", "")
    launch.execute(tmp_path)
    assert capfd.readouterr() == ("bar\n", "why\n")


PARENT = """
import sys
from pathlib import Path
from residual_lab import launch
launch.COMMAND = (sys.executable, "-c", sys.argv[2])
launch.execute(Path(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_a_run_saves_when_its_parent_is_killed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    parent = subprocess.Popen([sys.executable, "-c", PARENT, pipe, CHILD + "signal.pause()"])
    with pipe.open() as lines:
        assert lines.readline() == "ready\n"
    parent.kill()
    parent.wait()
    with pipe.open() as lines:
        assert lines.readline() == f"saved after {int(signal.SIGTERM)}\n"
