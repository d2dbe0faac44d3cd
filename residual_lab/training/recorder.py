"""Measures a run while it trains and writes metrics.jsonl, of which loggers are a mirror."""

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.trainer.states import TrainerFn

from residual_lab.config.schema import Config
from residual_lab.data.batches import Batch
from residual_lab.measure.clock import TrainingClock
from residual_lab.measure.environment import describe_devices, device_name
from residual_lab.measure.memory import PeakMemory, larger, peak_memory
from residual_lab.run_directory import RunDirectory
from residual_lab.training.module import ModelTraining
from residual_lab.training.stopping import check_divergence

log = logging.getLogger(__name__)


class Recorder(pl.Callback):
    """Windows of steps, validations, the clock, peak memory, and divergence (docs/measuring.md).

    A window ends at a multiple of ``measure.window_steps``, at a checkpoint and at the end. It is
    timed when all its steps come after this process's warm-up.
    """

    def __init__(self, run: RunDirectory, config: Config) -> None:
        self.run, self.config = run, config
        self.step = 0
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.test: dict[str, float] = {}  # what was measured on the test set
        self.latest: dict[str, Any] = {}  # the last row of each kind, merged
        self.validated = 0  # the step of the last validation
        self.device = self.device_name = ""
        self.device_since = 0  # the step from which the run is on this device
        self.clock = TrainingClock(lambda: synchronize(self._root_device))
        self.memory = PeakMemory()
        self._root_device = torch.device("cpu")
        self._first_loss: float | None = None
        self._peak: dict[str, Any] | None = None
        self._guess_loss = 0.0

    # -- what a resumed run needs -----------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "started": self.started,
            "seconds": self.clock.read(),
            "first_loss": self._first_loss,
            "peak_memory": self.peak_memory,
            "device": self.device,
            "device_since": self.device_since,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step, self.started = state_dict["step"], state_dict["started"]
        self.clock.seconds, self._peak = state_dict["seconds"], state_dict["peak_memory"]
        self._first_loss = state_dict["first_loss"]
        self.device, self.device_since = state_dict["device"], state_dict["device_since"]

    @property
    def peak_memory(self) -> dict[str, Any]:
        """``kind`` and ``value`` in bytes, null where nothing was measured."""
        now = {"kind": self.memory.kind, "value": None, **self.memory.peaks}
        return larger(now, self._peak)

    # -- training ---------------------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: pl.LightningModule, stage: str) -> None:
        self._guess_loss = trainer.datamodule.guess_loss
        if stage == "fit":
            self._root_device = trainer.strategy.root_device
            self.memory = peak_memory(self._root_device, self.config.hardware.compile)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.step = trainer.global_step
        self.device_name = device_name(self._root_device)
        device = describe_devices(self._root_device, trainer.world_size)
        if device != self.device:  # what was measured on another does not count
            self.device, self.device_since, self._peak = device, self.step, None
        self._timed_from = self.step + self.config.measure.warmup_steps + self.memory.slow_steps
        self.clock.start()
        self._begin_window()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        first_of_step = batch_idx % self.config.hardware.accumulate == 0
        if first_of_step and self.step == self._timed_from - self.memory.slow_steps:
            self.memory.begin(pl_module, trainer.optimizers[0])

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        self.memory.end_step()
        if self.step % self.config.measure.window_steps == 0 or self.step == self.config.steps:
            self.end_window(trainer, pl_module)

    def end_window(self, trainer: pl.Trainer, module: ModelTraining) -> None:
        """Write the row of the steps since the last window, if there are any; collective."""
        begun, begun_seconds = self._window
        if begun == self.step:
            return
        seconds = self.clock.read()
        loss = module.window_loss.mean(trainer.strategy)
        tokens = (self.step - begun) * self.config.budget.batch_tokens
        timed = begun >= self._timed_from
        assert module.gradient_norm is not None
        row = {
            "train_loss": loss,
            "learning_rate": self.config.optim.lr * module.schedule(self.step - 1),
            "gradient_norm": module.gradient_norm.item(),
            "tokens_per_s": tokens / (seconds - begun_seconds) if timed else None,
        }
        self._write(trainer, {"seconds": seconds, **row})
        module.window_loss.reset()
        self._begin_window()
        self._first_loss = loss if self._first_loss is None else self._first_loss
        self._check(loss)

    def _begin_window(self) -> None:
        self._window = (self.step, self.clock.read())

    def _check(self, loss: float) -> None:
        first = self._first_loss if self._first_loss is not None else loss
        check_divergence(loss, self.step, first, self._guess_loss)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Something that is not training."""
        self._pause()
        yield
        self._resume()

    def _pause(self) -> None:
        self.clock.stop()
        self.memory.pause()

    def _resume(self) -> None:
        self.memory.resume()
        self.clock.start()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._pause()

    # -- evaluation -------------------------------------------------------------------------

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self._pause()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        found = pl_module.evaluated()
        self.validated = self.step
        self._write(trainer, {f"val_{name}": value for name, value in found.items()})
        log.info("step %d of %d: validation %s", self.step, self.config.steps, _text(found))
        if trainer.state.fn == TrainerFn.FITTING:
            self._resume()
        self._check(found["loss"])

    def on_test_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.test = pl_module.evaluated()
        log.info("test %s", _text(self.test))

    # -- files ------------------------------------------------------------------------------

    def _write(self, trainer: pl.Trainer, numbers: dict[str, float | None]) -> None:
        """Append a row to metrics.jsonl, then tell the loggers; a number that is none is null."""
        finite = {k: v if v is not None and math.isfinite(v) else None for k, v in numbers.items()}
        row = {"step": self.step, "tokens": self.step * self.config.budget.batch_tokens, **finite}
        self.latest |= row
        if not trainer.is_global_zero:
            return
        with self.run.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        for logger in trainer.loggers:
            mirror(logger, row)


def _text(measured: dict[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.5g}" for name, value in measured.items())


def mirror(logger: Logger, row: dict[str, Any]) -> None:
    """Pass one row of metrics.jsonl on to a logger."""
    numbers = {key: value for key, value in row.items() if value is not None and key != "step"}
    logger.log_metrics(numbers, step=row["step"])


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "xla":
        import torch_xla.core.xla_model as xm

        xm.mark_step()
        xm.wait_device_ops()
