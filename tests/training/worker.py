"""``python -m tests.training.worker DIR[@STEP]...``: execute run directories one after the other.

A first process that reaches STEP of such a directory kills itself. When Lightning starts a second
process it does so with the first directory, and both go through the rest.
"""

import os
import signal
import sys
from typing import Any

from residual_lab import run
from residual_lab.training.recorder import Recorder

AFTER_BATCH = Recorder.on_train_batch_end


def execute(path: str, kill_at: int) -> int:
    """Run; leave the names of the modules that the first step had imported in modules.txt."""

    def after_batch(self: Recorder, trainer: Any, *arguments: Any) -> None:
        AFTER_BATCH(self, trainer, *arguments)
        if trainer.is_global_zero and trainer.global_step == 1:
            # Later, Lightning itself imports omegaconf to look for its objects in a checkpoint.
            (self.run.path / "modules.txt").write_text("\n".join(sys.modules), encoding="utf-8")
        if trainer.is_global_zero and trainer.global_step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    Recorder.on_train_batch_end = after_batch  # type: ignore[method-assign]
    return run.main([path])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path, _, step = argument.partition("@")
        status = execute(path, int(step or -1))
        if status:
            sys.exit(status)
