"""Made-up inspections for the tests of pictures and tables over depth."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from tests.tables.synthetic_runs import make_run

LAYERS = 4
TRIANGLE = np.full((LAYERS + 1, LAYERS + 1), np.nan)  # of seed 0
for row in range(1, LAYERS + 1):
    TRIANGLE[row, : row + 1] = [-0.5, *(0.01 * j for j in range(1, row)), 1]


def inspect_made(path: Path, cosine: float | None = 0.5, **weights: Any) -> Path:
    """Write inspection.json into a run; cosines fall to ``cosine``."""
    cosines = None if cosine is None else np.linspace(1, cosine, LAYERS + 1).tolist()
    plain = {name: _plain(np.asarray(values).tolist()) for name, values in weights.items()}
    text = json.dumps({"weights": plain, "cosine_to_embedding": cosines}, allow_nan=False)
    (path / "inspection.json").write_text(text)
    return path


def make_inspected(folder: Path, seeds: int = 2) -> None:
    """plain, laurel_pa beside every second layer, laurel_rw, denseformer and dca_k without any."""
    layers = {"model.layers": LAYERS}
    every_second = [[math.nan] * 4, [0.1, 0.2, 0.3, 0.4]] * 2
    for seed in range(seeds):
        run = make_run(folder, seed=seed, overrides=layers)
        inspect_made(run, cosine=0.2 * seed)
        run = make_run(folder, "laurel_pa", seed, layers)
        inspect_made(run, gamma=np.array(every_second) * (1 + seed))
        run = make_run(folder, "laurel_rw", seed, layers)
        inspect_made(run, alpha=np.arange(4) + seed, beta=2 - np.arange(4) - seed)
        run = make_run(folder, "denseformer", seed, layers)
        inspect_made(run, cosine=None, alpha=TRIANGLE * (1 + seed))
        make_run(folder, "dca_k", seed, layers)


def _plain(values: Any) -> Any:
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return None if math.isnan(values) else values
