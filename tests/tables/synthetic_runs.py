"""Run directories made up for the tests of tables and plots: no training, known numbers."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import yaml

CONFIG: dict[str, Any] = {
    "seed": 0,
    "model": {"name": "desk", "layers": 8, "width": 128, "vocabulary": 2048},
    "residual": {"name": "plain", "connection": "plain:Plain", "granularity": "layer"},
    "data": {
        "name": "python_source",
        "tokenizer": "bpe",
        "vocabulary": 2048,
        "sequence_length": 256,
        "workers": None,
        "cache_dir": "cache",
    },
    "budget": {"tokens": 1_228_800, "steps": None, "batch_tokens": 4096},
    "optim": {"name": "desk", "lr": 0.003, "betas": [0.9, 0.95]},
    "hardware": {"name": "cpu", "precision": "32-true"},
    "logger": {"name": "none", "tags": []},
    "measure": {"warmup_steps": 5, "window_steps": 10},
    "run": {"dir": "runs"},
}
RESULT: dict[str, Any] = {
    "status": "finished",
    "params": 1_800_000,
    "params_connection": 0,
    "tokens": 1_228_800,
    "steps": 300,
    "val_loss": 3.5,
    "test_loss": 3.6,
    "perplexity": 36.6,
    "step_time_s": {"median": 0.5, "p90": 0.6, "n": 29},
    "tokens_per_s": 8192.0,
    "peak_memory_bytes": {"kind": "cpu live tensors", "value": 2**28},
    "flops_per_token": 12_345_678,
    "mfu": None,
    "device": "a processor",
    "versions": {"torch": "2.13.0"},
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "data_fingerprint": "f00d",
    "started": "2026-01-01T00:00:00",
}


def config_with(overrides: dict[str, Any]) -> dict[str, Any]:
    """``CONFIG`` with dotted keys set: ``{"model.layers": 9}``."""
    config = copy.deepcopy(CONFIG)
    for key, value in overrides.items():
        *sections, last = key.split(".")
        section = config
        for name in sections:
            section = section[name]
        section[last] = value
    return config


def make_run(
    folder: Path,
    residual: str = "plain",
    seed: int = 0,
    overrides: dict[str, Any] | None = None,
    **result: Any,
) -> Path:
    """Write one run directory; ``result`` are keys of result.json, ``status=None`` writes none."""
    overrides = {"seed": seed, "residual.name": residual, **(overrides or {})}
    config = config_with(overrides)
    model, data = config["model"]["name"], config["data"]["name"]
    path = folder / f"{model}-{residual}-{data}-s{seed}-{abs(hash(str(config))) % 16**8:08x}"
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    result = {**RESULT, "name": residual, "seed": seed, **result}
    if result["status"] is not None:
        (path / "result.json").write_text(json.dumps(result))
    rows = [json.dumps(row) for row in curve(float(result["val_loss"]))]
    (path / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    return path


def curve(final: float) -> list[dict[str, Any]]:
    """A loss that falls from log(2048) to ``final`` in 300 steps, validated every 20."""
    rows: list[dict[str, Any]] = []
    for step in range(10, 301, 10):
        loss = final + (math.log(2048) - final) * math.exp(-step / 40)
        rows.append({"step": step, "tokens": 4096 * step, "seconds": step / 2, "train_loss": loss})
        if step % 20 == 0:
            rows.append({"step": step, "tokens": 4096 * step, "val_loss": loss})
    return rows
