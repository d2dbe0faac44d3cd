"""The Lightning module: a model's loss, its optimizer, and what must hold at every step."""

import random
from typing import Any, cast

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from residual_lab.config.schema import Config
from residual_lab.data.batches import Batch, example_batch, inputs_and_targets, predictions
from residual_lab.models import Model, build_model
from residual_lab.seeds import stream_seed
from residual_lab.training.optimizer import build_optimizer, is_connection
from residual_lab.training.schedules import build_schedule


class ModelTraining(pl.LightningModule):
    """Trains ``build_model(config)`` on the batches of its data (``data/batches.py``).

    ``model`` is there from the start: its keys in a checkpoint are ``model.…``. Everything
    that a step depends on beside weights and optimizer state is a function of the step:
    learning rate, dropout's random stream, whether the connection trains yet.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = build_model(config)
        self.schedule = build_schedule(config.optim, config.steps)
        self.window_loss = WeightedMean()
        self.evaluation = {name: WeightedMean() for name in self.model.measures}
        self.gradient_norm: Tensor | None = None
        self.shards = False  # set by configure_model
        self._configured = False

    def configure_model(self) -> None:
        """Shard (FSDP2) and compile; called before fitting and before each evaluation."""
        if self._configured:
            return
        self._configured = True
        mesh = self.device_mesh  # only ModelParallelStrategy sets one
        self.shards = mesh is not None
        if mesh is not None:
            shard(self.model, mesh["data_parallel"])
        if self.config.hardware.compile:
            compile_model(self.model, by_unit=self.shards)

    def configure_optimizers(self) -> Optimizer:
        precision = self.trainer.precision
        # Fused optimizers would unscale the gradients of 16-mixed itself and so rule out clipping.
        fused = self.device.type in ("cpu", "cuda") and precision != "16-mixed"
        if self.shards and self.config.optim.optimizer == "sgd":
            fused = False  # torch has no fused SGD of sharded weights
        return build_optimizer(self.model, self.config.optim, fused=fused)

    # -- training ---------------------------------------------------------------------------

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        if batch_idx % self.trainer.accumulate_grad_batches == 0:
            seed_dropout(self.config.seed, self.global_rank, self.global_step)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean loss of one micro-batch."""
        loss = self.model.loss(*inputs_and_targets(batch))
        self.window_loss.add(loss.detach(), predictions(batch))
        return loss

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Freeze the connection until its first step, then clip by the norm over all parameters.

        A connection that does not train yet has no gradient: the optimizer then leaves its weights,
        moments and step count alone, and it has no part in the norm.
        """
        if self.global_step < self.config.optim.connection_start_step:
            for name, parameter in self.model.named_parameters():
                if is_connection(name):
                    parameter.grad = None
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm([cast(Tensor, p.grad) for p in parameters])
        if self.config.optim.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(parameters, self.config.optim.clip_norm, norm)
        self.gradient_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Any = None,
    ) -> None:
        factor = self.schedule(self.global_step)
        for group in optimizer.param_groups:
            group["lr"] = self.config.optim.lr * factor * group["lr_factor"]
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        # Lightning frees gradients only after the next forward pass: they would add to its peak.
        optimizer.zero_grad()

    # -- evaluation -------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self._begin_evaluation(self.trainer.val_dataloaders)

    def on_test_epoch_start(self) -> None:
        self._begin_evaluation(self.trainer.test_dataloaders)

    def _begin_evaluation(self, loader: Any) -> None:
        for mean in self.evaluation.values():
            mean.reset()
        if self.trainer.world_size > 1:
            share_buffers(self.model, self.trainer.strategy)
        self._missing_batches = 0
        if self.shards:
            batches = torch.tensor(len(loader), device=self.device)
            longest = int(self.trainer.strategy.reduce(batches, reduce_op="max"))
            self._missing_batches = longest - len(loader)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        for name, value in self.model.evaluate(*inputs_and_targets(batch)).items():
            self.evaluation[name].add(value, predictions(batch))

    test_step = validation_step

    def evaluated(self) -> dict[str, float]:
        """The means over the whole set; collective."""
        strategy = self.trainer.strategy
        return {name: mean.mean(strategy) for name, mean in self.evaluation.items()}

    def on_validation_epoch_end(self) -> None:
        """Sharded layers gather their weights in every forward pass: all ranks need as many."""
        for _ in range(self._missing_batches):
            filler = self.trainer.precision_plugin.convert_input(example_batch(self.config, 1))
            self.model.loss(*(part.to(self.device) for part in inputs_and_targets(filler)))

    on_test_epoch_end = on_validation_epoch_end


class WeightedMean:
    """A running mean, each value weighted by its number of predictions, kept on the device."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total: Tensor | None = None
        self.predictions = 0

    def add(self, mean: Tensor, predictions: int) -> None:
        """Add a mean (scalar), such as a loss, over so many tokens or examples."""
        # XLA devices have no float64 to speak of; a window or a validation set fits float32 there.
        weighted = mean.to(torch.float32 if mean.device.type == "xla" else torch.float64)
        weighted = weighted * predictions
        self.total = weighted if self.total is None else self.total + weighted
        self.predictions += predictions

    def mean(self, strategy: Any) -> float:
        """The mean over all ranks of ``strategy``; a rank may have added nothing."""
        device = strategy.root_device
        dtype = torch.float32 if device.type == "xla" else torch.float64
        total = self.total if self.total is not None else torch.zeros((), device=device)
        sums = torch.stack(
            (total.to(dtype), torch.tensor(self.predictions, dtype=dtype, device=device))
        )
        total_sum, count = strategy.reduce(sums, reduce_op="sum").tolist()
        return float(total_sum / count)


@torch.no_grad()
def share_buffers(model: nn.Module, strategy: Any) -> None:
    """Give every process the first one's buffers: each has running statistics of its own."""
    for buffer in model.buffers():
        if torch.distributed.is_initialized():
            torch.distributed.broadcast(buffer, 0)
        else:  # XLA, whose broadcast returns what it sends, a scalar with a dimension
            buffer.copy_(strategy.broadcast(buffer, 0).reshape(buffer.shape))


def seed_dropout(seed: int, rank: int, step: int) -> None:
    """Start the global random streams of an optimizer step, as a function of seed, rank and step.

    So a resumed run needs no stored stream, and what validation or a logger draws changes nothing.
    """
    value = stream_seed(seed, "dropout", rank << 40 | step)
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value % 2**32)


def shard(model: Model, mesh: Any) -> None:
    """FSDP2: each layer or branch that the connection calls is a unit; the root has the rest."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for parameter in model.parameters():  # it takes no other memory format
        parameter.data = parameter.data.contiguous()
    for unit in model.units:
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    register_fsdp_forward_method(model, "loss")


def compile_model(model: Model, by_unit: bool) -> None:
    """Compile in place, so that the keys of the state dict stay as they are.

    The whole loss becomes one graph; ``by_unit`` compiles what FSDP shards, unit by unit.
    """
    if by_unit:
        for unit in model.units:
            unit.compile()
    else:
        model.loss = torch.compile(model.loss)  # type: ignore[method-assign]
