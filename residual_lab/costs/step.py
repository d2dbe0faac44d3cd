"""One optimizer step as training does it, without data and without Lightning."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from residual_lab.data.batches import Batch, inputs_and_targets
from residual_lab.models import Model

_AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
_MODULE = {"bf16-true": torch.bfloat16, "64-true": torch.float64}


def module_dtype(precision: str) -> torch.dtype:
    """What the weights are in at one of Lightning's precisions."""
    return _MODULE.get(precision, torch.float32)


@contextmanager
def computing_in(precision: str, device: torch.device) -> Iterator[None]:
    """Autocast where ``precision`` is a mixed one."""
    dtype = _AUTOCAST.get(precision)
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        yield


class TrainingStep:
    """Forward, backward, clipping and the optimizer on one batch.

    The order is that of ``training/module.py``: gradients are freed at the end of the step.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Optimizer,
        *,
        precision: str,
        clip_norm: float | None,
        accumulate: int = 1,
    ) -> None:
        self.model, self.optimizer, self.precision = model, optimizer, precision
        self.clip_norm, self.accumulate = clip_norm, accumulate

    def __call__(self, batch: Batch) -> None:
        inputs, targets = inputs_and_targets(batch)
        for _ in range(self.accumulate):
            with computing_in(self.precision, inputs.device):
                loss = self.model.loss(inputs, targets)
            (loss / self.accumulate).backward()
        self._clip()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _clip(self) -> None:
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([cast(Tensor, p.grad) for p in parameters])
        if self.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.clip_norm, norm)
