"""What the README shows works as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from residual_lab.cli import main
from residual_lab.commands.list import KINDS
from residual_lab.config import compose, conf_directory

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
TINY = [
    *("model.layers=2", "model.width=16", "model.heads=1", "data=text", "data.path=text"),
    *("data.vocabulary=300", "data.sequence_length=16", "data.cache_dir=cache", "hardware=cpu"),
    *("budget.tokens=null", "budget.steps=2", "budget.batch_tokens=64", "optim.warmup_steps=1"),
]


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def commands() -> list[str]:
    lines = [line.split("#")[0].split() for text in blocks("sh") for line in text.splitlines()]
    return [" ".join(line) for line in lines if line[:1] == ["residual-lab"]]


def test_a_connection_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's two files are all it takes: the connection trains, and starts as plain."""
    (tmp_path / "my_connections/residual").mkdir(parents=True)
    (tmp_path / "my_connections/damped.py").write_text(blocks("python")[0])
    (tmp_path / "my_connections/residual/damped.yaml").write_text(blocks("yaml")[0])
    (tmp_path / "text").mkdir()
    for number in range(60):
        words = " ".join(f"word{(number * i) % 97}" for i in range(80))
        (tmp_path / f"text/{number}.txt").write_text(f"{number} {words}\n")
    monkeypatch.chdir(tmp_path)
    (command,) = [line for line in commands() if "damped" in line]
    assert main([*command.split()[1:], *TINY]) == 0
    (result,) = tmp_path.glob("runs/desk-damped-*/result.json")
    assert '"params_connection": 2' in result.read_text()


def test_python_gives_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, object] = {}
    exec(blocks("python")[1], names)
    model = names["model"]
    assert isinstance(model, torch.nn.Module)
    assert model(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 2048)


def cells(markdown: str) -> list[dict[str, str]]:
    """The rows of the first table, by the heads of its columns."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(head, row, strict=True)) for row in rows]


def test_its_tables_are_those_of_the_results() -> None:
    shown = re.findall(r"\]\((experiments/\S+)/report\.md\)[^\n]*\n\n((?:\|.*\n)+)", TEXT)
    assert len(shown) == 4
    for folder, text in shown:
        rows = cells(text)
        whole = cells((README.parent / folder / "table.md").read_text(encoding="utf-8"))
        by_name = {row["residual"]: row for row in whole}
        for row in rows:
            name = row.pop("row")
            assert row == {column: by_name[name][column] for column in row}, (folder, name)


def test_every_train_command_composes() -> None:
    for command in commands():
        words = command.split()[1:]
        if words[0] != "train" or "--config-dir" in words:
            continue
        for word in words[1:]:
            key, _, values = word.partition("=")
            if key.startswith("hydra"):  # the launcher's own, tested with docs/sweeps.md
                continue
            for value in values.split(",") if values else []:
                compose([f"{key}={value}"])


def test_every_file_and_choice_that_it_names_exists() -> None:
    for path in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (README.parent / path).exists(), path
    for group in KINDS.values():
        for values in re.findall(rf"`{group}=([\w+, ]+)`", TEXT):
            for value in values.split(","):
                assert (conf_directory() / group / f"{value.strip()}.yaml").is_file(), value


def test_the_make_targets_that_it_names_exist() -> None:
    if not (README.parent / "Makefile").is_file():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["make", "help"], cwd=README.parent, capture_output=True, text=True, check=True
    ).stdout
    for target in re.findall(r"(?m)^make ([\w-]+)", TEXT):
        assert f"make {target} " in listed
    assert sys.version_info[:2] in ((3, 11), (3, 12), (3, 13))
