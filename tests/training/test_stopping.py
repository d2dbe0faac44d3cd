"""Divergence, signals and failures: how a run ends before its budget."""

import io
import json
import math
import os
import signal

import pytest
from rich.console import Console

from residual_lab.run_directory import RunDirectory, read_metrics
from residual_lab.training import checkpoints
from residual_lab.training.execution import execute
from residual_lab.training.module import ModelTraining
from residual_lab.training.recorder import Recorder
from residual_lab.training.stopping import Diverged, Interrupted, StopSignals, check_divergence

from .conftest import Lab, assert_same_weights, start_python


@pytest.mark.parametrize(
    ("loss", "diverged"),
    [(math.nan, True), (math.inf, True), (13.0, True), (11.0, False), (2.0, False)],
)
def test_diverged_is_no_number_or_twice_a_uniform_guess(loss: float, diverged: bool) -> None:
    """ln 300 = 5.70; a first loss of 6 makes the limit 12."""
    if diverged:
        with pytest.raises(Diverged, match="step 7"):
            check_divergence(loss, step=7, first_loss=6.0, guess_loss=math.log(300))
    else:
        check_divergence(loss, step=7, first_loss=6.0, guess_loss=math.log(300))


def test_a_diverged_run_says_so_and_reports_no_loss(lab: Lab) -> None:
    run = lab.run("optim.lr=1e30", "optim.clip_norm=null", "optim.warmup_steps=0")
    assert lab.execute(run) == 3
    assert run.status == "diverged"
    result = json.loads((run.path / "result.json").read_text(), parse_constant=pytest.fail)
    assert result["steps"] < 8
    assert result["error"].startswith("diverged: the loss is ")
    assert not (run.path / "inspection.json").exists()
    assert result["train_loss"] is None
    assert result["test_loss"] is None


def signalled(lab: Lab, number: int, step: int, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run that gets the signal during the forward pass of ``step``'s second micro-batch."""
    run = lab.run("hardware.accumulate=2")
    training_step = ModelTraining.training_step

    def with_signal(self: ModelTraining, batch: object, batch_idx: int) -> object:
        if batch_idx == 2 * step - 1:
            os.kill(os.getpid(), number)
        return training_step(self, batch, batch_idx)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelTraining, "training_step", with_signal)
    with pytest.raises(Interrupted) as caught:
        lab.execute(run)
    assert caught.value.exit_status == 128 + number
    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves_the_run_resumable(
    lab: Lab, straight: RunDirectory, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = signalled(lab, number, 5, monkeypatch)
    monkeypatch.undo()
    assert run.status == "unfinished"
    assert checkpoints.step_of(checkpoints.newest(run.checkpoints)) == 5
    assert lab.execute(run) == 0
    assert_same_weights(run, straight)


def test_outside_training_a_signal_stops_at_once() -> None:
    signals = StopSignals()
    signals.install()
    with pytest.raises(Interrupted, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def failed(lab: Lab) -> tuple[RunDirectory, str]:
    """A real process whose run fails, and what it said on standard error."""
    run = lab.run("evaluation.batch_sequences=5")
    done = start_python("tests.training.failing", str(run.path), "0")
    assert done.returncode == 1, done.stderr
    return run, done.stderr


def test_a_failed_run_holds_its_traceback(failed: tuple[RunDirectory, str]) -> None:
    """F7: the run's own log has it; result.json has its last line; standard error too."""
    run, errors = failed
    assert run.status == "failed"
    assert run.result is not None
    assert run.result["error"] == "ValueError: no such luck"
    for text in (run.log.read_text(), errors):
        assert "in validation_step" in text
        assert text.rstrip().endswith("ValueError: no such luck")


def test_a_failed_run_can_be_run_again(lab: Lab, failed: tuple[RunDirectory, str]) -> None:
    """It goes on from its checkpoint after step 3."""
    run, _ = failed
    assert lab.execute(run) == 0
    assert run.status == "finished"
    steps = [row["step"] for row in read_metrics(run.metrics) if "val_loss" in row]
    assert steps == [4, 8]


def test_a_failure_leaves_the_terminal_to_the_next_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F12: the bar of a failed run is gone; the next one shows its own, with loss and time left."""
    console = Console(file=io.StringIO(), force_terminal=True, width=120)

    def run_once() -> int:
        run = lab.run()
        return execute(run, devices=None, first=True, signals=StopSignals(), console=console)

    def fall_over(self: Recorder, *arguments: object) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(Recorder, "on_validation_end", fall_over)
    with pytest.raises(ValueError, match="no such luck"):
        run_once()
    monkeypatch.undo()
    assert isinstance(console.file, io.StringIO)
    hidden, visible = "\x1b[?25l", "\x1b[?25h"  # what hides and shows a terminal's cursor
    shown = console.file.getvalue()
    assert shown.count(hidden) == 1
    assert visible in shown[shown.index(hidden) :]
    assert run_once() == 0
    shown = console.file.getvalue()
    assert "8/8" in shown
    assert "loss" in shown
    assert "tokens/s" in shown
