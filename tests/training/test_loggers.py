"""Mirrors of the run's files: complete after a resume, one W&B run a run, never a question."""

import csv
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import WandbLogger

from residual_lab.config.schema import LoggerConfig
from residual_lab.errors import ConfigError
from residual_lab.run_directory import RunDirectory, read_metrics
from residual_lab.training.loggers import wandb_offline

from .conftest import Lab
from .test_resume import stopped_at


@pytest.fixture
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_csv_is_one_curve_after_a_resume(lab: Lab) -> None:
    """F26: Lightning's CSVLogger deletes the file that it finds; no row is lost all the same."""
    run = stopped_at(lab, 5, "logger=csv")
    lab.execute(run)
    with (run.path / "csv" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for key in ("train_loss", "val_loss"):
        expected = [(row["step"], row[key]) for row in read_metrics(run.metrics) if key in row]
        got = [(int(row["step"]), float(row[key])) for row in rows if row[key]]
        assert got == expected


def test_tensorboard_is_one_curve_after_a_resume(lab: Lab) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = stopped_at(lab, 5, "logger=tensorboard")
    lab.execute(run)
    events = accumulator.EventAccumulator(str(run.path / "tensorboard")).Reload()
    got = [(event.step, event.value) for event in events.Scalars("train_loss")]
    expected = [
        (row["step"], pytest.approx(row["train_loss"]))
        for row in read_metrics(run.metrics)
        if "train_loss" in row
    ]
    assert got == expected


@pytest.mark.usefixtures("no_key")
def test_wandb_without_a_key_is_offline_and_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wandb_offline(LoggerConfig(name="wandb"))
    assert wandb_offline(LoggerConfig(name="wandb", mode="offline"))
    with pytest.raises(ConfigError, match=r"logger\.mode=online: W&B has no key"):
        wandb_offline(LoggerConfig(name="wandb", mode="online"))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert not wandb_offline(LoggerConfig(name="wandb"))
    assert wandb_offline(LoggerConfig(name="wandb", mode="offline"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert wandb_offline(LoggerConfig(name="wandb"))


def test_a_key_of_wandb_login_is_found(
    no_key: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret")
    (tmp_path / ".netrc").chmod(0o600)
    assert not wandb_offline(LoggerConfig(name="wandb"))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What W&B was told of each of its runs: id, summary, and exit code."""
    import wandb

    told: list[dict[str, Any]] = []
    finish = wandb.Run.finish

    def watching(self: Any, exit_code: int | None = None) -> None:
        summary = {key: self.summary.get(key) for key in ("test_loss", "step_time_s.median")}
        known = {"id": self.id, "group": self.group, "config": dict(self.config)}
        told.append({**known, "summary": summary, "exit_code": exit_code})
        finish(self, exit_code)

    monkeypatch.setattr(wandb.Run, "finish", watching)
    return told


@pytest.mark.usefixtures("no_key")
def test_wandb_has_one_run_for_each_run(lab: Lab, watched: list[dict[str, Any]]) -> None:
    """F6, F29: failed runs are marked so, resumed ones keep their id, others get their own."""
    run = stopped_at(lab, 5, "logger=wandb", "logger.group=table")
    lab.execute(run)
    other = lab.trained("logger=wandb", "logger.mode=offline", "seed=1", "budget.steps=2")
    failed, resumed, second = watched
    assert failed["exit_code"] == 1
    assert (resumed["exit_code"], second["exit_code"]) == (0, 0)
    assert failed["id"] == resumed["id"] != second["id"]
    assert resumed["group"] == "table"
    assert resumed["config"]["optim"]["lr"] == run.config.optim.lr
    assert run.result is not None
    assert resumed["summary"]["test_loss"] == run.result["test_loss"]
    assert resumed["summary"]["step_time_s.median"] == run.result["step_time_s"]["median"]
    assert len(offline_runs(run)) == 2
    assert len(offline_runs(other)) == 1


def offline_runs(run: RunDirectory) -> list[Path]:
    return list((run.path / "wandb").glob("offline-run-*"))


@pytest.mark.usefixtures("no_key")
def test_wandb_that_cannot_be_reached_does_not_stop_a_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key, but no network: the run goes on offline."""
    import wandb

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    experiment = WandbLogger.experiment.fget  # type: ignore[attr-defined]

    def unreachable(self: WandbLogger) -> Any:
        if not self._offline:
            raise wandb.errors.CommError("no route to host")
        return experiment(self)

    monkeypatch.setattr(WandbLogger, "experiment", property(unreachable))
    run = lab.trained("logger=wandb", "budget.steps=1")
    assert len(offline_runs(run)) == 1
