"""``residual-lab train``: one run, dispatched to a process of its own."""

import logging
from pathlib import Path
from typing import Any

import pytest

from residual_lab.cli import main
from residual_lab.commands import train
from residual_lab.run_directory import RunDirectory

TINY = ["budget.tokens=4096", "model.layers=1"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class FakeRuns:
    """Stands in for the process that trains: it writes a result and returns its exit status."""

    def __init__(self) -> None:
        self.executed: list[Path] = []
        self.ending: tuple[int, dict[str, Any] | None] = (0, {"status": "finished"})

    def __call__(self, directory: Path, **_: Any) -> int:
        self.executed.append(directory)
        status, result = self.ending
        if result is not None:
            RunDirectory.open(directory).write_result(result)
        return status


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    fake = FakeRuns()
    monkeypatch.setattr(train, "execute", fake)
    monkeypatch.setattr(train, "_summary", lambda path: print(f"summary of {path}"))
    monkeypatch.chdir(tmp_path)
    return fake


def test_a_run_is_made_executed_and_summed_up(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "residual=laurel_rw", *TINY]) == 0
    (path,) = runs.executed
    assert path.parent == tmp_path / "runs"
    assert RunDirectory.open(path).config.residual.name == "laurel_rw"
    assert f"summary of {path}" in capsys.readouterr().out
    assert names(tmp_path) == ["runs"]  # nothing of Hydra's
    assert names(tmp_path / "runs") == [path.name]


def test_the_same_command_again_says_finished(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["train", *TINY])
    capsys.readouterr()
    assert main(["train", *TINY]) == 0
    (path,) = runs.executed
    assert capsys.readouterr().out == f"finished: {path}\nsummary of {path}\n"


def test_a_diverged_run_stays_diverged(runs: FakeRuns) -> None:
    runs.ending = (3, {"status": "diverged"})
    assert main(["train", *TINY]) == 3
    assert main(["train", *TINY]) == 3
    assert len(runs.executed) == 1


def test_failed_and_unfinished_runs_are_executed_again(
    runs: FakeRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.ending = (1, {"status": "failed", "error": "ValueError: 42"})
    assert main(["train", *TINY]) == 1
    assert capsys.readouterr().err.endswith(": ValueError: 42\n")
    runs.ending = (143, None)
    assert main(["train", *TINY]) == 143
    assert "the same command resumes it" in capsys.readouterr().err
    runs.ending = (0, {"status": "finished"})
    assert main(["train", *TINY]) == 0
    assert len(runs.executed) == 3 and len(set(runs.executed)) == 1


def test_a_refused_run_did_not_fail(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    """Its process has said why; nothing is added, and nothing is left behind."""
    runs.ending = (2, None)
    assert main(["train", *TINY]) == 2
    (path,) = runs.executed
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert names(path.parents[1]) == []  # nor is run.dir


@pytest.mark.parametrize("begun", ["metrics.jsonl", "checkpoints", "result.json", "in use"])
def test_a_refused_run_that_had_begun_stays(runs: FakeRuns, begun: str) -> None:
    """F5: also one that another process holds."""
    runs.ending = (143, None)
    main(["train", *TINY])
    run = RunDirectory.open(runs.executed[0])
    runs.ending = (2, None)
    if begun == "in use":
        with run.lock():
            assert main(["train", *TINY]) == 2
    else:
        (run.path / begun).write_text('{"status": "failed"}')
        assert main(["train", *TINY]) == 2
    assert (run.path / "config.yaml").exists()


def test_a_killed_run_says_so(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    runs.ending = (137, None)
    assert main(["train", *TINY]) == 137
    assert ": killed by signal 9 (often: out of memory); the same" in capsys.readouterr().err


def test_a_broken_result_is_refused(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", *TINY])
    capsys.readouterr()
    (runs.executed[0] / "result.json").write_text("{")
    assert main(["train", *TINY]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("mode", [[], ["-m"]])
def test_a_bad_configuration_writes_nothing(
    runs: FakeRuns, mode: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *mode, "optim.lr=abc", "seeed=1", "model.heads=3"]) == 2
    captured = capsys.readouterr()
    assert [line.split(":")[0] for line in captured.err.splitlines()] == [
        "seeed=1",
        "optim.lr=abc",
        "model.heads=3",
    ]
    assert captured.out == ""
    assert names(tmp_path) == []


def test_hydras_views_of_the_configuration(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    assert main(["train", "--cfg", "job", "-p", "optim", "optim.lr=0.5"]) == 0
    assert "lr: 0.5\n" in capsys.readouterr().out
    assert main(["train", "--info", "defaults-tree"]) == 0
    assert "residual: plain" in capsys.readouterr().out
    assert main(["train", "--cfg", "job", "residual=absent"]) == 2
    assert capsys.readouterr().err.startswith("residual=absent: no such choice")
    assert runs.executed == [] and names(tmp_path) == []
    assert (root.handlers, root.level) == (handlers, level)


def test_for_several_hosts_the_run_is_made_and_the_command_is_printed(
    runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "hardware=ddp", "hardware.devices=4", "hardware.nodes=2"]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    assert RunDirectory.open(run).config.hardware.nodes == 2
    said = capsys.readouterr().out
    assert (
        "\ntorchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST" in said
    )
    assert f"\nsrun --nodes 2 --ntasks-per-node 4 python -m residual_lab.run {run}\n" in said
    assert runs.executed == []


@pytest.mark.parametrize("option", [["--resolve"], ["--package", "optim"]])
def test_options_of_a_view_train_nothing(
    option: list[str], runs: FakeRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *option]) == 2
    assert capsys.readouterr().err == (
        f"{' '.join(option)}: goes with --cfg, which shows the configuration; add --cfg job\n"
    )
    assert runs.executed == [] and names(tmp_path) == []


def test_help_lists_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "laurel_rw+lr, " in text and "nanodo_157m" in text


def test_an_unknown_flag_is_refused(runs: FakeRuns, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--mulitrun"])
    assert end.value.code == 2
    assert "--mulitrun" in capsys.readouterr().err


def test_a_users_own_groups(runs: FakeRuns, tmp_path: Path) -> None:
    own = tmp_path / "own/optim"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("name: mine\nlr: 0.25\n")
    assert main(["train", "--config-dir", "own", "optim=mine", *TINY]) == 0
    assert RunDirectory.open(runs.executed[0]).config.optim.lr == 0.25
