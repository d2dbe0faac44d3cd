"""What a training step must compute and move, and how fast this machine does either."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from residual_lab.config.data import ImageDataConfig
from residual_lab.config.models import ViTConfig
from residual_lab.config.schema import Config, OptimConfig
from residual_lab.data.batches import example_batch, inputs_and_targets
from residual_lab.measure.flops import flop_counter
from residual_lab.models import build_model

# AdamW reads weight, gradient and two moments, and writes all but the gradient; SGD has no moments,
# or with momentum one.
_ADAMW_PASSES, _SGD_PASSES, _MOMENTUM_PASSES = 7, 3, 5


@dataclass(frozen=True)
class Work:
    """Of one training step."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Rates:
    """What this machine reaches, measured."""

    flops_per_s: float
    bytes_per_s: float

    def seconds(self, work: Work) -> float:
        """The time of ``work`` with neither overlap nor a cache."""
        return work.flops / self.flops_per_s + work.bytes / self.bytes_per_s

    def least_ratio(self, work: Work, base: Work, base_seconds: float) -> float:
        """The least ratio to a base of ``base_seconds``: what ``work`` has more, at full speed."""
        more = Work(work.flops - base.flops, work.bytes - base.bytes)
        return 1 + self.seconds(more) / base_seconds


class _BytesMoved(TorchDispatchMode):
    """Adds up what each operation reads and writes; a view moves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            arguments = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            results = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
            self.total += sum(map(_size, arguments)) + sum(map(_size, results))
        return result


def _size(tensor: Tensor) -> int:
    """Bytes; of an expanded tensor those that there are."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def work_of_step(config: Config, batch: int) -> Work:
    """FLOPs of the matrix products and bytes of all operations of one training step in float32.

    Operation by operation on the meta device, forward, backward and the optimizer.
    """
    with torch.device("meta"):
        model = build_model(config)
        inputs, targets = inputs_and_targets(example_batch(config, batch))
    with _BytesMoved() as moved, flop_counter() as counter:
        model.loss(inputs, targets).backward()
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return Work(counter.get_total_flops(), moved.total + _passes(config.optim) * weights)


def _passes(optim: OptimConfig) -> int:
    if optim.optimizer == "adamw":
        return _ADAMW_PASSES
    return _MOMENTUM_PASSES if optim.momentum else _SGD_PASSES


def _positions(config: Config) -> int:
    """How many vectors of the model's width stand for one sequence, or one image."""
    if isinstance(config.data, ImageDataConfig):
        model, size = config.model, config.data.image_size
        pixels = model.patch_size if isinstance(model, ViTConfig) else getattr(model, "stride", 1)
        side: int = -(-size // pixels)
        return side * side
    return config.data.sequence_length


def probes(
    config: Config, batch: int, device: torch.device
) -> tuple[dict[str, Callable[[], object]], Work]:
    """Two pieces of work to time beside the configurations, and what each of them does.

    ``additions``: of activations, as many as there are layers, one after the other, so
    that they lie in the caches as little, or as much, as those of the model.
    ``products``: the MLP's first product. The work of both together is returned.
    """
    tokens, width = batch * _positions(config), config.model.width
    layers = max(2, config.model.layers)
    stream = torch.zeros(tokens, width, device=device)
    activations = [torch.zeros(tokens, width, device=device) for _ in range(layers)]
    weight = torch.zeros(width, 4 * width, device=device)
    out = torch.zeros(tokens, 4 * width, device=device)

    def add() -> None:
        for first, second in zip(activations, [*activations[1:], activations[0]], strict=True):
            torch.add(first, stream, out=second)

    def multiply() -> None:
        torch.mm(stream, weight, out=out)

    moved = 3 * layers * stream.numel() * stream.element_size()
    return {"additions": add, "products": multiply}, Work(2 * tokens * width * 4 * width, moved)
