"""A small table of its own, and how to read what the command wrote."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

Reproduce = Callable[..., int]

TABLE: dict[str, Any] = {
    "title": "A table",
    "source": "A paper, table 1",
    "metric": "test_loss",
    "baseline": "Plain",
    "scales": {
        "paper": {"seeds": 1, "overrides": ["model=nanodo_157m"], "on": "a machine"},
        "gpu": {"seeds": 2, "overrides": [], "on": "a machine"},
        "desk": {
            "seeds": 3,
            "overrides": ["model=desk_small", "model.layers=2", "hardware=cpu"],
            "on": "a machine",
            "minutes": 1.0,
        },
    },
    "rows": [
        {
            "name": "Plain",
            "overrides": ["residual=plain"],
            "paper": {"params": "157.20M", "perplexity": "20.0 ± 0.1"},
        },
        {
            "name": "RW",
            "names": {"desk": "a small RW"},
            "overrides": ["residual=laurel_rw"],
            "paper": {"params": "157.20M", "perplexity": "19.0 ± 0.1"},
        },
        {
            "name": "Deeper",
            "overrides": ["residual=plain"],
            "scales": {"desk": ["model.layers=3"], "paper": ["model.layers=28"]},
            "deeper": True,
            "paper": {"params": "179.22M", "perplexity": "20.05 ± 0.1"},
        },
        {"name": "PA, later", "overrides": ["residual=laurel_pa"], "after": "Plain"},
    ],
}


def write(path: Path, table: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(table, sort_keys=False))


def rows_of(folder: Path) -> dict[str, dict[str, str]]:
    with (folder / "table.csv").open() as file:
        return {row["row"]: row for row in csv.DictReader(file)}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
