"""``python -m tests.training.killed DIR STEP``: execute DIR; the first process kills itself at STEP.

It leaves the names of the modules that step 1 had imported in DIR/modules.txt.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from residual_lab import run
from residual_lab.training.recorder import Recorder


def kill_at(step: int) -> None:
    after_batch = Recorder.on_train_batch_end

    def patched(self: Recorder, trainer: Any, *arguments: Any) -> None:
        after_batch(self, trainer, *arguments)
        if trainer.is_global_zero and trainer.global_step == 1:
            # Later, Lightning itself imports omegaconf to look for its objects in a checkpoint.
            (self.run.path / "modules.txt").write_text("\n".join(sys.modules), encoding="utf-8")
        if trainer.is_global_zero and trainer.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    Recorder.on_train_batch_end = patched  # type: ignore[method-assign]


if __name__ == "__main__":
    kill_at(int(sys.argv[2]))
    sys.exit(run.main([str(Path(sys.argv[1]))]))
