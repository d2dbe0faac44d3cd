"""The Lightning module in the hands of trainers that are not here: other strategies, precisions."""

from typing import Any

import pytest
import torch
from lightning.pytorch.plugins import DoublePrecision, HalfPrecision, Precision
from torch import Tensor, nn

from residual_lab.config import compose
from residual_lab.training.module import ModelTraining

IMAGES = ("model=resnet_desk", "data=digits", "optim=resnet", "model.stages=[2,2]")
TOY = ("model=low_rank_linear", "data=linear_map", "optim=sgd", "residual=grn_v1")


class Trainer:
    """What the module asks of Lightning's."""

    val_dataloaders: tuple[Any, ...] = ()

    def __init__(self, strategy: Any = None, precision: Precision | None = None) -> None:
        self.strategy, self.precision_plugin = strategy, precision
        self.world_size = 2


class XLA:
    """A strategy without torch.distributed; this is its second process."""

    def __init__(self, own: nn.Module, first: nn.Module) -> None:
        self.first = dict(zip(map(id, own.buffers()), first.buffers(), strict=True))

    def broadcast(self, sent: Tensor, source: int) -> Tensor:
        """Return what the first process has, a scalar with a dimension, as Lightning's does."""
        assert source == 0
        tensor = self.first[id(sent)].clone()
        return tensor if tensor.ndim else tensor[None]


def test_running_statistics_are_the_first_processs_also_without_torch_distributed() -> None:
    own, first = (ModelTraining(compose([*IMAGES, "hardware=cpu"])) for _ in range(2))
    for buffer in first.model.buffers():
        buffer.copy_(torch.rand(buffer.shape) * 100)
    trainer = Trainer(XLA(own.model, first.model))
    own.trainer = trainer  # type: ignore[assignment]
    own.on_validation_epoch_start()
    buffers = list(zip(own.model.buffers(), first.model.buffers(), strict=True))
    assert len(buffers) > 6 and all(torch.equal(*pair) for pair in buffers)


@pytest.mark.parametrize("overrides", [IMAGES, TOY], ids=["images", "vectors"])
@pytest.mark.parametrize("precision", [DoublePrecision(), HalfPrecision("bf16-true")])
def test_a_batch_that_fills_up_is_in_the_precision_of_the_weights(
    overrides: tuple[str, ...], precision: Precision
) -> None:
    """Ranks of sharded models with fewer batches than others compute one more."""
    module = ModelTraining(compose([*overrides, "hardware=cpu"]))
    precision.convert_module(module.model).eval()
    trainer = Trainer(precision=precision)
    module.trainer, module._missing_batches = trainer, 1  # type: ignore[assignment]
    module.on_validation_epoch_end()  # would fail in another precision
