"""What a person sees: a progress bar in a terminal, and lines in the log elsewhere."""

import logging
from datetime import timedelta
from typing import Any

import lightning.pytorch as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from residual_lab.config.schema import Config
from residual_lab.measure.protocol import kind_of
from residual_lab.training.recorder import Recorder

log = logging.getLogger(__name__)
LINES = 20  # lines about training in the log of a whole run


class StepProgress(pl.Callback):
    """Optimizer steps done, loss, tokens (or images) per second and time left, of process 0."""

    def __init__(self, recorder: Recorder, console: Console | None, steps: int) -> None:
        self.recorder, self.steps = recorder, steps
        self._bar = _bar(console) if console is not None and console.is_terminal else None
        self._read = kind_of(recorder.config.data.source)
        self._next_line = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        log.info("training from step %d to %d", trainer.global_step, self.steps)
        if self._bar is not None and trainer.is_global_zero:
            self._bar.start()
            self._task = self._bar.add_task(
                "training", total=self.steps, completed=trainer.global_step, numbers=""
            )

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        latest = self.recorder.latest
        if self._bar is not None and trainer.is_global_zero:
            self._bar.update(
                self._task, completed=trainer.global_step, numbers=self._numbers(latest)
            )
        elif latest.get("step") == trainer.global_step and trainer.global_step >= self._next_line:
            left = self.steps - trainer.global_step
            numbers = f"{self._numbers(latest)}{_time_left(left, self.recorder.config, latest)}"
            log.info("step %d of %d: %s", trainer.global_step, self.steps, numbers)
            self._next_line = trainer.global_step + max(1, self.steps // LINES)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stop()

    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        self._stop()

    def _numbers(self, latest: dict[str, Any]) -> str:
        formats = {
            "train_loss": "loss {:.4f}",
            "val_loss": "validation {:.4f}",
            "val_accuracy": "accuracy {:.2%}",
            "tokens_per_s": f"{{:,.0f}} {self._read}/s",
        }
        return ", ".join(
            text.format(latest[key]) for key, text in formats.items() if latest.get(key) is not None
        )

    def _stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
    )


def _time_left(steps: int, config: Config, latest: dict[str, Any]) -> str:
    """How long training itself will take at the speed of the last window."""
    speed = latest.get("tokens_per_s")
    if not speed or not steps:
        return ""
    seconds = steps * config.budget.batch_tokens / speed
    return f", {timedelta(seconds=round(seconds))} left"
