"""Every table that comes with the package, from training to the report, in seconds."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from residual_lab import jobs
from residual_lab import run as run_module
from residual_lab.cli import main
from residual_lab.reproduce import reproduction
from residual_lab.reproduce.table_file import load_table, table_names

WORDS = ["a", "and", "cat", "dog", "fish", "hen", "mat", "on", "ran", "sat", "sun", "the"]
STEPS = [
    *("budget.tokens=null", "budget.steps=2", "budget.batch_tokens=32"),
    *("evaluation.every_steps=2", "measure.warmup_steps=0", "measure.window_steps=1"),
    *("optim.warmup_steps=1", "optim.connection_start_step=0", "run.checkpoint_every_steps=2"),
]
TEXT = [
    *("data=text", "data.vocabulary=280", "data.sequence_length=16", "data.workers=1"),
    *("data.validation_tokens=null", "data.test_tokens=null"),
    *("data.validation_fraction=0.2", "data.test_fraction=0.2"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, and the run directories that tables share."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "text").mkdir()
    chance = random.Random(0)
    for number in range(40):
        text = " ".join(chance.choice(WORDS) for _ in range(60))
        (folder / "text" / f"{number}.txt").write_text(text, encoding="utf-8")
    return folder


def reproduce(name: str, rows: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command with runs in this process; return table.json."""

    def execute(directory: Path, **_: Any) -> int:
        return run_module.main([str(directory)])

    monkeypatch.setattr(jobs, "execute", execute)
    monkeypatch.chdir(place)
    text = [*TEXT, f"data.path={place / 'text'}", f"data.cache_dir={place / 'cache'}"]
    table = load_table(name)
    reads_text = "data=" not in " ".join([*table.overrides, *table.scales["desk"].overrides])
    few = [f"rows={','.join(rows)}"] if rows else []
    arguments = ["reproduce", name, "seeds=1", "rounds=0", "out=out", *few, *STEPS]
    # Norms know little of a batch's statistics after two steps: large ones would look diverged.
    slow = [] if name.endswith("toy") else ["optim.lr=1e-4"]
    assert main([*arguments, *(text if reads_text else slow)]) in (0, 3)  # the toy may diverge
    return json.loads((place / "out" / "table.json").read_text())


def first_rows(name: str) -> list[str]:
    """Few, but the kinds that differ: the first, the last and one that starts from another's."""
    rows = load_table(name).rows
    chosen = [rows[0], rows[-1], *[row for row in rows if row.after][:1]]
    return list(dict.fromkeys(row.name for row in chosen))


@pytest.mark.parametrize("name", table_names())
def test_a_few_rows_of_every_table(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduction, "draw_rows", lambda *_: [])  # slow, and tested by itself
    table = reproduce(name, first_rows(name), place, monkeypatch)
    assert all(row["seeds"]["value"] == 1 for row in table["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("name", table_names())
def test_every_row_of_every_table(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = reproduce(name, [], place, monkeypatch)
    assert len(table["rows"]) == len(load_table(name).rows)
    ended = [row["seeds"] for row in table["rows"]]
    assert all(seeds["value"] + seeds["diverged"] == 1 for seeds in ended)
    drawn = {path.name for path in (place / "out/pictures").glob("*weights*.png")}
    assert drawn, "neither weights by layer nor a map of any row"
