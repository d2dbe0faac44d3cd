"""Sweeps that really train, a tiny model on a tiny corpus, in the processes that users get."""

import os
import re
from pathlib import Path

import pytest

from residual_lab.cli import main
from residual_lab.run_directory import RunDirectory

TINY = [
    *("model.layers=1", "model.width=16", "model.heads=1"),
    *("data=text", "data.path=text", "data.cache_dir=cache"),
    *("data.sequence_length=16", "data.vocabulary=300"),
    *("budget.batch_tokens=64", "budget.tokens=256", "evaluation.every_steps=4"),
    *("measure.warmup_steps=1", "measure.window_steps=1"),
]

BROKEN = """
from residual_lab.residuals import Connection

class Broken(Connection):
    def forward(self, x, layers):
        raise RuntimeError("broken on purpose")
"""

FAILURE = r"(?m)^failed: \S+broken\S+: RuntimeError: broken on purpose$"


def write_corpus(folder: Path) -> None:
    """What ``data.path=text`` of TINY names, in ``folder``."""
    (folder / "text").mkdir()
    for number in range(60):
        words = " ".join(f"word{(number * i) % 97}" for i in range(80))
        (folder / f"text/{number}.txt").write_text(f"{number} {words}\n")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a corpus, and a connection that fails."""
    write_corpus(tmp_path)
    (tmp_path / "own/residual").mkdir(parents=True)
    (tmp_path / "own/broken.py").write_text(BROKEN)
    spec = f"{tmp_path}/own/broken.py:Broken"
    (tmp_path / "own/residual/broken.yaml").write_text(f"name: broken\nconnection: {spec}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(*arguments: str) -> int:
    return main(["train", "-m", "--config-dir", "own", *TINY, *arguments])


def statuses(folder: Path) -> dict[str, str]:
    runs = [RunDirectory.open(file.parent) for file in folder.glob("runs/*/config.yaml")]
    return {f"{run.config.residual.name}-{run.config.seed}": run.status for run in runs}


def test_one_failing_job_among_good_ones(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """F7: its traceback is in its log, the others go on. F20: each has a process of its own."""
    assert train("residual=broken,plain", "hardware=cpu") == 1
    printed = capfd.readouterr()
    assert statuses(folder) == {"broken-0": "failed", "plain-0": "finished"}
    (log,) = folder.glob("runs/*broken*/log.txt")
    assert "Traceback" in log.read_text() and "broken on purpose" in log.read_text()
    logs = [log.read_text() for log in folder.glob("runs/*/log.txt")]
    processes = {re.findall(r"in process (\d+)", log)[0] for log in logs}
    assert len(processes) == 2 and str(os.getpid()) not in processes
    assert len(re.findall(FAILURE, printed.err)) == 2  # at once, and at the end
    assert "1 of 2 runs finished" in printed.out
    assert re.search(r"(?m)^broken +0 of 1: 1 failed", printed.out)  # the table's row
    assert {path.name for path in folder.iterdir()} == {"text", "own", "cache", "runs"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
        ["hydra/launcher=submitit_local"],
    ],
    ids=["joblib", "submitit_local"],
)
def test_launchers(launcher: list[str], folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["residual=plain,laurel_rw,broken", "seed=0,1", "hardware=cpu", *launcher]
    expected = {f"{name}-{seed}": "finished" for name in ("plain", "laurel_rw") for seed in (0, 1)}
    expected |= {"broken-0": "failed", "broken-1": "failed"}
    assert train(*command) == 1
    assert statuses(folder) == expected
    assert len(set(re.findall(FAILURE, capfd.readouterr().err))) == 2
    before = {file: file.stat().st_mtime_ns for file in folder.glob("runs/*/result.json")}
    assert train(*command) == 1
    again = {file for file, time in before.items() if file.stat().st_mtime_ns != time}
    assert {RunDirectory.open(file.parent).config.residual.name for file in again} == {"broken"}


@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["cpu_ddp", "cpu_fsdp"])
def test_jobs_of_two_processes_make_one_tree(hardware: str, folder: Path) -> None:
    """F1: the second process of a job does not run the sweep once more."""
    assert train("residual=plain,laurel_rw", f"hardware={hardware}") == 0
    assert statuses(folder) == {"plain-0": "finished", "laurel_rw-0": "finished"}
    assert len(list((folder / "runs").iterdir())) == 3  # two runs and sweeps/
    assert len(list(folder.rglob("result.json"))) == 2
