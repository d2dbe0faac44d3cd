"""Residual networks of convolutions. A stage is a stack of layers that return increments.

Between layers a stream has its channels last, (B, H, W, C), which is a view of what convolutions
make in torch's memory format of that name: connections act on the last dimension, unchanged, and a
linear map there is a 1×1 convolution.

Shapes: B images, C channels, H and W pixels.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from residual_lab.config.models import ResNetConfig
from residual_lab.models.classifier import Classifier
from residual_lab.models.recompute import recompute
from residual_lab.residuals import Connection
from residual_lab.residuals.connection import EditValues

MOMENTUM = 0.1  # of the running statistics of norms


class Block(nn.Module):
    """The convolutions of a block, each with its norm; returns the increment.

    bottleneck: 1×1, 3×3 and 1×1; the 3×3 has the stride, as is usual since torch's own ResNet
    (He et al. 2015 have it in the first). basic: two of 3×3, the first with the stride.

    The ReLUs stand between the convolutions and after the addition, or with
    ``relu="before_convolutions"`` norm and ReLU before each of them (He et al. 2016).
    """

    def __init__(self, config: ResNetConfig, width: int, stage: int, stride: int) -> None:
        super().__init__()
        inner, out = config.base_width * 2**stage, config.widths[stage]
        if config.block == "bottleneck":
            shapes = [(width, inner, 1, 1), (inner, inner, 3, stride), (inner, out, 1, 1)]
        else:
            shapes = [(width, inner, 3, stride), (inner, out, 3, 1)]
        self.norm_first = config.relu == "before_convolutions"
        self.convolutions = nn.ModuleList(convolution(*shape) for shape in shapes)
        self.norms = nn.ModuleList(
            nn.BatchNorm2d(shape[0] if self.norm_first else shape[1], momentum=MOMENTUM)
            for shape in shapes
        )

    def forward(
        self,
        x_BHWC: Tensor,
        q: Tensor | None = None,
        k: Tensor | None = None,
        v: Tensor | None = None,
        *,
        edit_values: EditValues | None = None,
        gain: Tensor | None = None,
    ) -> Tensor:
        """Read ``q``, by default ``x``; there are no keys or values."""
        x_BCHW = (x_BHWC if q is None else q).permute(0, 3, 1, 2)
        return channels_last(self.convolve(self.activate(x_BCHW), gain))

    def activate(self, x_BCHW: Tensor) -> Tensor:
        """Return what the first convolution reads."""
        return F.relu_(self.norms[0](x_BCHW)) if self.norm_first else x_BCHW

    def convolve(self, x_BCHW: Tensor, gain: Tensor | None = None) -> Tensor:
        """Return the increment from what :meth:`activate` made, (B, channels out, H/s, W/s).

        s is the stride. ``gain``, (1) or (channels out), is a factor on it where a norm ends it.
        """
        if self.norm_first:
            x_BCHW = self.convolutions[0](x_BCHW)
            for convolve, norm in zip(self.convolutions[1:], self.norms[1:], strict=True):
                x_BCHW = convolve(F.relu_(norm(x_BCHW)))
            return x_BCHW
        for convolve, norm in zip(self.convolutions[:-1], self.norms[:-1], strict=True):
            x_BCHW = F.relu_(norm(convolve(x_BCHW)))
        return scaled_norm(self.norms[-1], self.convolutions[-1](x_BCHW), gain)


class Transition(nn.Module):
    """A block that changes the shape: its shortcut is no identity, and no connection is there.

    shortcut: ``projection`` is a 1×1 convolution (with a norm where blocks end with one),
    ``padding`` every second pixel with zeros for the new channels (He et al. 2015, options B, A).
    """

    def __init__(self, config: ResNetConfig, width: int, stage: int, stride: int) -> None:
        super().__init__()
        self.block = Block(config, width, stage, stride)
        self.stride, self.padding = stride, config.widths[stage] - width
        self.projection: nn.Module | None = None
        if config.shortcut == "projection":
            self.projection = convolution(width, config.widths[stage], 1, stride)
            if not self.block.norm_first:
                norm = nn.BatchNorm2d(config.widths[stage], momentum=MOMENTUM)
                self.projection = nn.Sequential(self.projection, norm)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = self.block.activate(x_BCHW)
        total = self.block.convolve(x_BCHW) + self._shortcut(x_BCHW)
        return total if self.block.norm_first else F.relu_(total)

    def _shortcut(self, x_BCHW: Tensor) -> Tensor:
        if self.projection is not None:
            projected: Tensor = self.projection(x_BCHW)
            return projected
        x_BCHW = x_BCHW[..., :: self.stride, :: self.stride]
        before = self.padding // 2
        return F.pad(x_BCHW, (0, 0, 0, 0, before, self.padding - before))


class Stage(nn.Module):
    """A transition, unless the shape stays, and the layers of the stack behind it."""

    def __init__(self, config: ResNetConfig, width: int, stage: int) -> None:
        super().__init__()
        out, depth, stride = config.widths[stage], config.depths[stage], 1 if stage == 0 else 2
        changes = depth < config.stages[stage]
        self.transition = Transition(config, width, stage, stride) if changes else None
        self.layers = nn.ModuleList(Block(config, out, stage, 1) for _ in range(depth))


class Connections(nn.ModuleList):
    """A connection for each stage."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        super().__init__(connections)
        self.initial_gains: Mapping[str, float] = {}  # norms stand behind the convolutions

    def weights_over_depth(self) -> dict[str, Tensor]:
        """Those of each stage, ``stage 1 alpha``."""
        return {
            f"stage {number} {name}": weights
            for number, connection in enumerate(self, 1)
            for name, weights in cast(Connection, connection).weights_over_depth().items()
        }


class ResNet(Classifier):
    """Images (B, C, H, W) to logits (B, classes).

    Papers: He et al. 2015, arXiv 1512.03385; with ``relu="before_convolutions"`` He et al. 2016,
    arXiv 1603.05027. ResNet-50 has 25,557,032 parameters, ResNet-110 for CIFAR-10 1,727,962.
    Convolutions start from N(0, 2/(k²·channels out)), norms at 1, the head at N(0, 0.01²). With
    ``zero_gamma`` the last norm of a block starts at 0, and the block as the identity (Goyal et al.
    2017, arXiv 1706.02677, section 5.1); a ReLU behind that norm would keep it there for good, so
    it goes with ``relu="after_addition"`` alone.
    """

    def __init__(
        self, config: ResNetConfig, label_smoothing: float, *, checkpoint_layers: bool = False
    ) -> None:
        super().__init__(config.classes, label_smoothing)
        self.config, self.checkpoint_layers = config, checkpoint_layers
        width, norm_last = config.base_width, config.relu == "before_convolutions"
        kernel, stride = (7, 2) if config.stem == "imagenet" else (3, 1)
        self.stem = convolution(config.channels, width, kernel, stride)
        self.stem_norm: nn.Module | None = (
            None if norm_last else nn.BatchNorm2d(width, momentum=MOMENTUM)
        )
        widths = [width, *config.widths]
        self.stages = nn.ModuleList(
            Stage(config, widths[stage], stage) for stage in range(len(config.stages))
        )
        self.norm = nn.BatchNorm2d(config.width, momentum=MOMENTUM) if norm_last else None
        self.head = nn.Linear(config.width, config.classes)
        self._initialise()
        if checkpoint_layers:
            self._count_statistics_once()

    def connect(self, connections: Sequence[Connection]) -> None:
        """Take a connection for each stage, and give it what stands after an addition."""
        if self.config.relu == "after_addition":
            for connection in connections:
                connection.relu_after_sum = connection.layers_take_gain = True
        self.connection = Connections(connections)

    @property
    def units(self) -> list[nn.Module]:
        return [layer for stage in self._stages() for layer in stage.layers]

    def hidden(self, images_BCHW: Tensor) -> Tensor:
        """Return what the head reads, the mean over pixels (B, width)."""
        x_BCHW: Tensor = self.stem(images_BCHW.contiguous(memory_format=torch.channels_last))
        if self.stem_norm is not None:
            x_BCHW = F.relu_(self.stem_norm(x_BCHW))
        if self.config.stem == "imagenet":
            x_BCHW = F.max_pool2d(x_BCHW, 3, 2, 1)
        for stage, connection in zip(self._stages(), self.connection, strict=True):
            if stage.transition is not None:
                x_BCHW = stage.transition(x_BCHW)
            x_BHWC = connection(channels_last(x_BCHW), self._callables(stage))
            x_BCHW = x_BHWC.permute(0, 3, 1, 2)
        if self.norm is not None:
            x_BCHW = F.relu_(self.norm(x_BCHW))
        return x_BCHW.mean((2, 3))

    def _callables(self, stage: Stage) -> list[nn.Module | partial[Tensor]]:
        if self.checkpoint_layers and torch.is_grad_enabled():
            return [partial(recompute, layer) for layer in stage.layers]
        return list(stage.layers)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                module.weight.data = module.weight.contiguous(memory_format=torch.channels_last)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)
        if self.config.zero_gamma:
            for module in self.modules():
                if isinstance(module, Block):
                    nn.init.zeros_(cast(nn.BatchNorm2d, module.norms[-1]).weight)

    def _count_statistics_once(self) -> None:
        """Norms of recomputed layers see each batch twice: two steps that make up one."""
        for unit in self.units:
            for module in unit.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.momentum = 1 - (1 - MOMENTUM) ** 0.5

    def _stages(self) -> list[Stage]:
        return [stage for stage in self.stages if isinstance(stage, Stage)]


def channels_last(x_BCHW: Tensor) -> Tensor:
    """Return (B, H, W, C), contiguous as connections expect a stream: a view where it can be."""
    return x_BCHW.permute(0, 2, 3, 1).contiguous()


def scaled_norm(norm: nn.Module, x_BCHW: Tensor, gain: Tensor | None) -> Tensor:
    """Return ``gain`` times what the norm makes of x: it has a scale and a shift of its own."""
    if gain is None:
        return cast(Tensor, norm(x_BCHW))
    scaled = {name: weight * gain for name, weight in norm.named_parameters()}
    return cast(Tensor, functional_call(norm, scaled, (x_BCHW,)))


def convolution(width: int, out: int, kernel: int, stride: int) -> nn.Conv2d:
    """``kernel``² from ``width`` to ``out`` channels, padded so that stride 1 keeps all pixels."""
    return nn.Conv2d(width, out, kernel, stride, padding=kernel // 2, bias=False)
