"""The command line's front door: help, unknown commands, and the ways to start it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from residual_lab.cli import COMMANDS, main

from .tables.synthetic_runs import make_run
from .test_sweeps_real import TINY, write_corpus

CHECKOUT = Path(__file__).resolve().parent.parent
STARTS = {
    "console script": [str(Path(sys.executable).parent / "residual-lab")],
    "module": [sys.executable, "-m", "residual_lab"],
    "checkout": [sys.executable, str(CHECKOUT / "cli.py")],
}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert all(f"  {command} " in text for command in COMMANDS)


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian", "seed=1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("trian: no such command; did you mean train?")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", "out={out}"],
        ["bench", "rounds_out={out}"],
        ["estimate", "out={out}"],
        ["eval", "{runs}", "out={out}"],
        ["inspect", "{runs}", "out={out}"],
        ["reproduce", "laurel/c4_ablation", "only=estimate", "out={out}"],
        ["table", "{runs}", "out={out}"],
        ["table", "{runs}", "plots={out}"],
    ],
)
def test_where_nothing_can_be_written_no_work_is_done(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for work in ("costs.bench.bench", "costs.estimate.estimate", "evaluation.table.evaluate"):
        monkeypatch.delattr(f"residual_lab.{work}")  # whoever comes to use it fails
    make_run(tmp_path / "runs")
    (tmp_path / "file").write_text("mine")
    names = {"runs": tmp_path / "runs", "out": tmp_path / "file" / "new" / "table.md"}
    assert main([argument.format(**names) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"cannot be written ({tmp_path / 'file'} is no folder)" in captured.err
    assert captured.err.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


def test_too_little_memory_is_one_line() -> None:
    """In a process of its own: after a refusal glibc takes further memory from elsewhere."""
    further = ["residual=plain", "batch=1", f"sequence={10**12}", "rounds=2"]
    done = subprocess.run([*STARTS["module"], "bench", *further], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"can't allocate memory: .*bytes.*; take a smaller .*\n", done.stderr)


def test_a_size_beyond_any_memory_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "residual=plain", "batch=1", f"sequence={10**12}"]) == 1
    captured = capsys.readouterr()
    assert re.fullmatch(r"Storage size .* overflowed .*10{12}.*; take a smaller .*\n", captured.err)


@pytest.mark.parametrize("way", STARTS)
def test_every_start_works_from_any_folder(way: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [*STARTS[way], *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert run("--version").stdout == "residual-lab 0.1.0\n"
    assert run("trian").returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("way", STARTS)
def test_every_start_trains_in_two_processes(way: str, tmp_path: Path) -> None:
    """F3: Lightning starts the second process with a command line that nobody has edited.

    F2: the two leave one run directory and nothing else in the current folder.
    """
    write_corpus(tmp_path)
    command = [*STARTS[way], "train", "hardware=cpu_ddp", *TINY]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"text", "cache", "runs"}
    (run,) = (tmp_path / "runs").iterdir()
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "finished" and result["device"].startswith("2 × ")
    assert "[process 1]" in (run / "log.txt").read_text()


HEAVY = """
import sys
from residual_lab.cli import main
for arguments in ([], ["train", "--help"], ["list"], ["list", "residuals"], ["completion", "bash"]):
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    assert not status, arguments
heavy = {"torch", "lightning", "hydra", "datasets", "wandb", "numpy"} & set(sys.modules)
main(["completion", "--line", "residual-lab train residual=laurel_"])  # asks Hydra
heavy |= {"torch", "lightning", "datasets", "wandb"} & set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else 0)
"""


def test_help_and_listing_import_nothing_heavy() -> None:
    """F14: so they take a fraction of a second."""
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", ["list", "--help", ""])
def test_a_reader_that_has_had_enough(arguments: str) -> None:
    command = f"{sys.executable} -m residual_lab {arguments} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
