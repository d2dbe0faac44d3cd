"""``python -m tests.training.failing DIR``: execute DIR, whose first validation fails."""

import sys

from residual_lab import run
from residual_lab.training.module import LanguageModel


def validation_step(self: LanguageModel, batch: object, batch_idx: int) -> None:
    raise ValueError("no such luck")


if __name__ == "__main__":
    LanguageModel.validation_step = validation_step  # type: ignore[method-assign, assignment]
    sys.exit(run.main([sys.argv[1]]))
