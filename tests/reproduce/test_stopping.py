"""``reproduce`` stopped and run again, and how far it says that it is."""

import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from residual_lab.reproduce import reproduction, running
from residual_lab.run_directory import RunDirectory
from tests.reproduce.fake_runs import FakeRuns
from tests.reproduce.own_table import Reproduce, contents


def test_stopped_and_run_again_gives_the_table_of_a_straight_run(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    def stop(run: RunDirectory) -> int:
        return FakeRuns.finish(run) if len(runs.executed) <= 5 else 128 + 15

    runs.ending = stop
    assert reproduce() != 0
    assert sum(1 for _ in (tmp_path / "runs").rglob("result.json")) == 5
    said = "Not complete: 7 of 12 runs are missing; the same command runs them."
    assert said in (tmp_path / "out/report.md").read_text()
    assert reproduce("only=table") != 0
    said = "Not complete: 7 of 12 runs are missing; without only=table it runs them."
    assert said in (tmp_path / "out/report.md").read_text()
    runs.ending = FakeRuns.finish
    assert reproduce() == 0
    stopped = contents(tmp_path / "out")
    assert "Not complete" not in (tmp_path / "out/report.md").read_text()
    for name in ("out", "runs"):
        (tmp_path / name).rename(tmp_path / f"first-{name}")
    reproduce()
    assert contents(tmp_path / "out") == stopped


@pytest.mark.parametrize("status", [1, 130])
def test_stopped_before_the_first_run_ends(
    status: int,
    reproduce: Reproduce,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The status is that of the jobs: a scheduler is to see that the same command goes on."""
    monkeypatch.setattr(reproduction, "run_missing", lambda *_: status)
    assert reproduce() == status
    captured = capsys.readouterr()
    assert captured.out == "" and not (tmp_path / "out").exists()
    assert captured.err == "own/small: no run has come to an end: there is no table yet\n"


def test_times_that_were_not_asked_for_and_times_that_are_not_there_yet(
    reproduce: Reproduce, tmp_path: Path
) -> None:
    reproduce("seeds=1", "rows=Plain")
    assert "side by side (rounds=0), so there are none" in (tmp_path / "out/table.md").read_text()
    reproduce("seeds=1", "rows=Plain", "only=table", "rounds=20")
    assert "side by side, so there are none" in (tmp_path / "out/table.md").read_text()


def test_progress_counts_the_runs_that_wait_for_others_too(
    reproduce: Reproduce, runs: FakeRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has rows that begin when others have ended, and is one whole all the same."""
    told: list[int] = []

    def progress(runs: list[object], _: Path) -> "nullcontext[None]":
        told.append(len(runs))
        return nullcontext()

    monkeypatch.setattr(running, "progress_of", progress)
    assert reproduce() == 0
    assert told == [12] and len(runs.executed) == 12


def test_a_row_by_hand_finds_the_run_that_it_starts_from(
    reproduce: Reproduce, tmp_path: Path
) -> None:
    """Where ``run.dir`` was given, that run lies there."""
    for given, folder in (([], "runs"), ([f"run.dir={tmp_path}/shared"], f"{tmp_path}/shared")):
        reproduce("seeds=1", *given)
        text = (tmp_path / "out/report.md").read_text()
        (start,) = re.findall(r"start\.run=(\S+)/desk_small-plain-", text)
        assert start == folder
