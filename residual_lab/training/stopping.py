"""How a run ends before its budget: asked to by a signal, or because the loss diverged."""

import math
import signal
from types import FrameType
from typing import Any

import lightning.pytorch as pl

EXPLODED = 2.0  # times the larger of the first window's loss and the loss of a blind guess


class Interrupted(BaseException):
    """A signal asked the run to stop; it has saved what it could and resumes from there.

    Like KeyboardInterrupt it is no Exception, so that nobody takes it for an error.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}; run it again to resume")
        self.exit_status = 128 + signum


class Diverged(Exception):  # noqa: N818  # a result, not an error
    """The training loss is no number any more, or has exploded."""


def check_divergence(loss: float, step: int, first_loss: float, guess_loss: float) -> None:
    """Raise :class:`Diverged` for a loss that is not finite or has exploded.

    ``loss`` is the mean of a window of training steps, or of the validation set. It has exploded
    when it is more than twice the larger of ``first_loss``, the first window's mean, and
    ``guess_loss``, that of a guess without looking at the input.
    """
    limit = EXPLODED * max(first_loss, guess_loss)
    if not math.isfinite(loss):
        raise Diverged(f"diverged: the loss is {loss} at step {step}")
    if loss > limit:
        raise Diverged(f"diverged: the loss is {loss:.4g} at step {step}, over {limit:.4g}")


class StopSignals(pl.Callback):
    """SIGTERM and Ctrl-C.

    During training they wait for the end of an optimizer step, where a checkpoint can be written
    (see :meth:`agreed`); a second one, and any outside training, stops at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._training = False

    def install(self) -> None:
        """Take the two signals; call it in the main thread."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None or not self._training:
            raise Interrupted(signum)
        self.received = signum

    def agreed(self, trainer: pl.Trainer) -> int | None:
        """The signal that any process has received; collective."""
        received: Any = self.received or 0
        if trainer.world_size > 1:
            import torch

            tensor = torch.tensor(received, device=trainer.strategy.root_device)
            received = int(trainer.strategy.reduce(tensor, reduce_op="max"))
        return received or None

    # Lightning takes SIGTERM whenever it starts something. Its handler talks to the other
    # processes from within the handler, in the midst of whatever they are exchanging.

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.install()
        self._training = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._training = False

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.install()

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.install()
