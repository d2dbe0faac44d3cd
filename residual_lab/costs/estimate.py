"""Parameters, FLOPs and memory of a training step, without the hardware or the bytes."""

from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import Optimizer

from residual_lab.config.schema import Config
from residual_lab.costs.arguments import sequences_per_device
from residual_lab.costs.step import TrainingStep, module_dtype
from residual_lab.data.batches import example_batch, inputs_and_targets
from residual_lab.measure.flops import flops_per_token
from residual_lab.measure.memory import StorageTracker
from residual_lab.measure.parameters import count_parameters
from residual_lab.models import Model, build_model
from residual_lab.training.optimizer import build_optimizer


@dataclass(frozen=True)
class Memory:
    """Bytes at the moment of a training step when most are in use, by what they are."""

    weights: int
    gradients: int
    optimizer: int
    activations: int  # and what else lives: temporaries, tokens

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class Estimate:
    """What one device holds and computes, counted."""

    parameters: int
    connection_parameters: int
    flops_per_token: float  # forward and backward
    memory: Memory
    batch: int  # sequences per device and micro-batch
    precision: str


def estimate(config: Config) -> Estimate:
    """Count what one device holds and computes when it trains ``config``, weights not sharded."""
    with torch.device("meta"):
        counts = count_parameters(build_model(config))
    return Estimate(
        parameters=counts["params"],
        connection_parameters=counts["params_connection"],
        flops_per_token=flops_per_token(config),
        memory=training_memory(config),
        batch=sequences_per_device(config),
        precision=assumed_precision(config),
    )


def assumed_precision(config: Config) -> str:
    """``hardware.precision``; for auto, what training takes on ``hardware.accelerator``."""
    hardware = config.hardware
    if hardware.precision != "auto":
        return hardware.precision
    return "bf16-mixed" if hardware.accelerator == "gpu" else "32-true"


def training_memory(config: Config) -> Memory:
    """The peak of a training step after the first, when the optimizer has its state.

    The step runs on fake tensors, which have shapes and lifetimes but no bytes, and torch's
    tracker follows their storages: what it counts on a real CPU run (docs/measuring.md). An
    allocator's rounding, fragmentation and the workspaces inside kernels come on top.
    """
    precision, hardware = assumed_precision(config), config.hardware
    with torch.device("meta"):
        model = build_model(config)
    with FakeTensorMode(allow_non_fake_inputs=True):
        allocate(model, module_dtype(precision))
        fused = precision != "16-mixed"  # as in training
        step = TrainingStep(
            model,
            build_optimizer(model, config.optim, fused=fused),
            precision=precision,
            clip_norm=config.optim.clip_norm,
            accumulate=min(2, hardware.accumulate),  # from the second on nothing new is kept
        )
        dtype = module_dtype(precision)
        batch = example_batch(config, sequences_per_device(config), dtype=dtype)
        _fill_state(step.optimizer)
        tracker = StorageTracker()
        tracker.track_external(model, step.optimizer, *inputs_and_targets(batch))
        with tracker:
            step(batch)
        kinds = tracker.peak()
    total = kinds["Total"]
    weights = kinds["Parameter"] + kinds["Buffer"]
    gradients, optimizer = kinds["Gradient"], kinds["Optstate"]
    return Memory(weights, gradients, optimizer, total - weights - gradients - optimizer)


def _fill_state(optimizer: Optimizer) -> None:
    """Let the optimizer make its state, as the first step of a training does."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def allocate(model: Model, dtype: torch.dtype) -> None:
    """Move a model from the meta device to (fake) memory."""

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        as_dtype = dtype if tensor.is_floating_point() else tensor.dtype
        return torch.empty(tensor.shape, dtype=as_dtype)

    model._apply(empty)
