"""Sweeps: Hydra's multirun, with one run directory and one result a job."""

import os
import re
import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.errors import HydraException

from residual_lab import compose, jobs, sweep
from residual_lab.cli import main
from residual_lab.commands import train
from residual_lab.config.composition import started_hydra
from residual_lab.run_directory import RunDirectory
from residual_lab.tables import load_runs

SWEEP = ["train", "-m", "residual=plain,laurel_rw", "seed=0", "budget.tokens=4096"]


class FakeRuns:
    """Stands in for the processes that train."""

    def __init__(self) -> None:
        self.executed: list[Path] = []
        self.ending: Callable[[RunDirectory], int] = self.finish

    def __call__(self, directory: Path, **_: Any) -> int:
        self.executed.append(directory)
        return self.ending(RunDirectory.open(directory))

    @staticmethod
    def finish(run: RunDirectory) -> int:
        run.write_result({"status": "finished", "val_loss": 1.0})
        return 0


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    fake = FakeRuns()
    monkeypatch.setattr(jobs, "execute", fake)
    monkeypatch.setattr(train, "_compare", lambda paths: print(f"compared {len(paths)}"))
    monkeypatch.chdir(tmp_path)
    return fake


def results(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.rglob("result.json"))


def test_one_tree_and_one_result_a_job(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F1: test_sweeps_real.py has it with jobs of two processes."""
    assert main(SWEEP) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    made = sorted(path.name for path in (tmp_path / "runs").iterdir() if path.name != "sweeps")
    assert made == results(tmp_path) and len(made) == 2
    variants = {
        (c.residual.name, c.seed) for c in (RunDirectory.open(p).config for p in runs.executed)
    }
    assert variants == {("plain", 0), ("laurel_rw", 0)}
    out = capsys.readouterr().out
    assert out.endswith("2 of 2 runs finished\ncompared 2\n")
    assert re.search(r"(?m)^job 1: desk-laurel_rw-\S+  residual=laurel_rw$", out)


def test_runs_of_a_sweep_share_a_group_that_is_the_sweeps_id(
    runs: FakeRuns, tmp_path: Path
) -> None:
    main(SWEEP)
    (folder,) = (tmp_path / "runs/sweeps").iterdir()
    assert {RunDirectory.open(path).config.logger.group for path in runs.executed} == {folder.name}
    RunDirectory.create(compose(["budget.tokens=8192"]))  # no run of the sweep
    assert {run.path.name for run in load_runs([folder])} == set(results(tmp_path))
    (folder / "jobs/mine.json").write_text("[]")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder.parent)
        assert {run.path.name for run in load_runs([folder.name])} == set(results(tmp_path))
    (tmp_path / "runs").rename(tmp_path / "moved")
    moved = load_runs([tmp_path / "moved/sweeps" / folder.name])
    assert {run.path.parent for run in moved} == {tmp_path / "moved"}
    (tmp_path / "moved").rename(tmp_path / "runs")
    main([*SWEEP[:2], *reversed(SWEEP[2:]), "run.fail_fast=true"])  # the same runs, said otherwise
    assert list((tmp_path / "runs/sweeps").iterdir()) == [folder]


def test_again_does_only_what_is_missing(runs: FakeRuns, tmp_path: Path) -> None:
    """F8: what is finished is skipped, also by a larger sweep."""
    main(SWEEP)
    assert main(SWEEP) == 0
    assert len(runs.executed) == 2
    more = [*SWEEP]
    more[more.index("seed=0")] = "seed=0,1"
    assert main(more) == 0
    assert len(runs.executed) == 4


def fail_laurel(run: RunDirectory) -> int:
    if run.config.residual.name == "plain":
        return FakeRuns.finish(run)
    run.write_result({"status": "failed", "error": "ValueError: 42"})
    return 1


def test_a_failure_stops_no_other_and_is_reported_twice(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F7: at once, and with the others at the end."""
    runs.ending = fail_laurel
    assert main(["train", "-m", "residual=laurel_rw,plain", "budget.tokens=4096"]) == 1
    captured = capsys.readouterr()
    failures = re.findall(r"(?m)^failed: (\S+laurel_rw\S+): ValueError: 42$", captured.err)
    assert len(failures) == 2 and len(set(failures)) == 1
    assert len(runs.executed) == 2
    assert "1 of 2 runs finished\ncompared 2\n" in captured.out


def test_fail_fast(runs: FakeRuns) -> None:
    """F7: where it is asked for, the first failure stops the sweep."""
    runs.ending = fail_laurel
    command = ["train", "-m", "residual=laurel_rw,plain", "budget.tokens=4096"]
    assert main([*command, "run.fail_fast=true"]) == 1
    assert len(runs.executed) == 1
    runs.ending = runs.finish
    assert main(command) == 0  # what failed is tried again, and the rest is made up for
    assert len(runs.executed) == 3 and len(set(runs.executed)) == 2


def test_diverged(runs: FakeRuns) -> None:
    def diverge(run: RunDirectory) -> int:
        run.write_result({"status": "diverged"})
        return 3

    runs.ending = diverge
    assert main(SWEEP) == 3
    assert main(SWEEP) == 3
    assert len(runs.executed) == 2


def test_a_sweep_over_nothing_is_refused(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "-m", "residual=glob(nothing*)"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("there is nothing to run") and captured.err.count("\n") == 1
    assert runs.executed == [] and captured.out == ""


def test_interrupted_and_gone_on_with(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F8: the same command runs what was stopped and what had not begun."""

    def interrupt(run: RunDirectory) -> int:
        if run.config.seed == 0:
            return FakeRuns.finish(run)
        os.kill(os.getpid(), signal.SIGINT)
        return 143

    command = ["train", "-m", "seed=0,1,2", "budget.tokens=4096"]
    runs.ending = interrupt
    assert main(command) == 130
    assert len(runs.executed) == 2
    assert "unfinished: " in capsys.readouterr().err
    runs.ending = runs.finish
    assert main(command) == 0
    assert len(runs.executed) == 4 and len(set(runs.executed)) == 3


def test_every_job_is_validated_before_the_first_starts(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "-m", "residual=plain,laurel_rv", "model.heads=4,3", "lr=1", "optim.lr=x"]
    assert main(command) == 2
    keys = [line.split(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert sorted(keys) == ["lr=1", "model.heads=3", "optim.lr=x", "residual=laurel_rv"]
    assert runs.executed == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "start"),
    [
        ("hydra/launcher=jolib", "hydra/launcher=jolib: no such choice; did you mean joblib?"),
        ("optim.lr=interval(0,1)", "-m: BasicSweeper does not support"),
        ("seed=range(", "seed=range(: not an override"),
        (
            "hydra.launcher.n_jobs=2",
            "hydra.launcher.n_jobs=2: this launcher runs one job at a time; add "
            "hydra/launcher=joblib\n",
        ),
        ("hardware.nodes=2", "hardware.nodes=2: a sweep starts nothing on other hosts;"),
    ],
)
def test_a_sweep_that_cannot_be(
    override: str, start: str, runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "-m", override]) == 2
    assert capsys.readouterr().err.startswith(start)


@pytest.mark.parametrize(
    ("launcher", "extra"), [("ray", "ray"), ("submitit_slurm", "submitit"), ("joblib", "joblib")]
)
def test_a_launcher_that_is_not_installed(
    launcher: str,
    extra: str,
    runs: FakeRuns,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without(self: ConfigLoaderImpl, group: str, *args: Any, **named: Any) -> list[str]:
        found = options(self, group, *args, **named)
        return [name for name in found if group != "hydra/launcher" or name == "basic"]

    def absent(self: ConfigLoaderImpl, **named: Any) -> Any:
        if f"hydra/launcher={launcher}" in named["overrides"]:
            raise HydraException(f"Could not find 'hydra/launcher/{launcher}'")
        return load(self, **named)

    load = ConfigLoaderImpl.load_configuration
    options = ConfigLoaderImpl.get_group_options
    monkeypatch.setattr(ConfigLoaderImpl, "get_group_options", without)
    # Hydra itself would find what this environment has.
    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", absent)
    assert main([*SWEEP, f"hydra/launcher={launcher}"]) == 2
    assert (
        f"hydra/launcher={launcher}: it is not installed: pip install 'residual-lab[{extra}]'"
        in (capsys.readouterr().err.splitlines())
    )


def test_hydras_own_ways_to_say_a_sweep(runs: FakeRuns, tmp_path: Path) -> None:
    assert main(["train", "-m", "model=glob(nanodo*)", "seed=range(2)"]) == 0
    assert len(results(tmp_path)) == 2
    own = tmp_path / "own"
    own.mkdir()
    (own / "grid.yaml").write_text(
        "defaults: [config, _self_]\nhydra:\n  sweeper:\n    params:\n      seed: 5,6\n"
    )
    runs.executed.clear()
    assert main(["train", "-m", "--config-dir", "own", "--config-name", "grid"]) == 0
    assert sorted(RunDirectory.open(path).config.seed for path in runs.executed) == [5, 6]


def test_a_job_in_use_is_refused_and_the_others_run(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(SWEEP)
    taken = RunDirectory.open(runs.executed[0])
    (taken.path / "result.json").unlink()
    assert taken.status == "unfinished"
    runs.executed.clear()
    with taken.lock():
        assert main(SWEEP) == 1
    assert runs.executed == []
    assert f"refused: {taken.path}: in use" in capsys.readouterr().err


def test_a_sweep_whose_every_job_is_refused_leaves_no_run(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(run: RunDirectory) -> int:
        run.log.write_text("2026-01-01 00:00:00,000 ERROR data.path=x: no text there\n")
        return 2

    runs.ending = refuse
    assert main(SWEEP) == 2
    assert len(runs.executed) == 2
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["sweeps"]
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 4  # each at once, and at the end
    assert all(line.endswith(": data.path=x: no text there") for line in errors)


def test_a_broken_result_stops_no_other_job(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(SWEEP)
    (runs.executed[0] / "result.json").write_text("{")
    assert main(SWEEP) == 1
    assert "1 of 2 runs finished" in capsys.readouterr().out


PAGE = (Path(__file__).parent.parent / "docs/sweeps.md").read_text(encoding="utf-8")
BLOCKS = "\n".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
COMMANDS = [shlex.split(line)[3:] for line in BLOCKS.splitlines() if " train -m " in line]


@pytest.mark.parametrize("overrides", COMMANDS, ids=" ".join)
def test_the_commands_of_the_documentation_are_valid(overrides: list[str], tmp_path: Path) -> None:
    if "hydra/launcher=ray" in overrides:
        pytest.importorskip("ray")
    with started_hydra() as hydra:
        sweep._prepare(hydra, [*overrides, f"run.dir={tmp_path}"], "config")
    assert len(list((tmp_path / "sweeps").iterdir())) == 1
