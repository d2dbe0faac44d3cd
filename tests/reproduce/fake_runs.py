"""Runs that end at once with losses made up from their configuration: nothing trains."""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from residual_lab.run_directory import RunDirectory, config_hash
from tests.tables.synthetic_runs import RESULT, curve

GAINS = {"laurel_rw": 0.05, "laurel_pa": 0.10}  # nats below plain, before the noise


class FakeRuns:
    """Stands in for the process that trains; ``ending`` may be replaced."""

    def __init__(self) -> None:
        self.executed: list[RunDirectory] = []
        self.ending: Callable[[RunDirectory], int] = self.finish

    def __call__(self, directory: Path, **_: Any) -> int:
        run = RunDirectory.open(directory)
        self.executed.append(run)
        return self.ending(run)

    @staticmethod
    def finish(run: RunDirectory) -> int:
        config = run.config
        of_seed = random.Random(config.seed).gauss(0, 0.05)
        own = random.Random(hashlib.sha256(config_hash(config).encode()).hexdigest())
        loss = 3.5 + of_seed + own.gauss(0, 0.005) - GAINS.get(config.residual.name, 0)
        loss += 10 * (config.optim.lr - 0.008) ** 2 * 1e3  # 0.008 is the best learning rate
        rows = [json.dumps(row) for row in curve(loss)]
        run.metrics.write_text("\n".join(rows) + "\n")
        run.write_result({**RESULT, "seed": config.seed, "val_loss": loss, "test_loss": loss + 0.1})
        return 0

    @staticmethod
    def diverge(run: RunDirectory) -> int:
        run.write_result({**RESULT, "status": "diverged", "val_loss": None})
        return 3
