"""``python -m tests.training.failing DIR RANK``: execute DIR; validation fails in one process."""

import sys
from typing import Any

from residual_lab import run
from residual_lab.training.module import ModelTraining

VALIDATION_STEP = ModelTraining.validation_step


def validation_step(self: ModelTraining, batch: Any, batch_idx: int) -> None:
    if self.global_rank == int(sys.argv[2]):
        raise ValueError("no such luck")
    VALIDATION_STEP(self, batch, batch_idx)


if __name__ == "__main__":
    ModelTraining.validation_step = validation_step  # type: ignore[method-assign, assignment]
    sys.exit(run.main([sys.argv[1]]))
