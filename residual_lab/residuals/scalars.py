"""Learned factors on the increment: residual gates, ReZero and LayerScale."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.mixing import carry


class ResidualGates(Connection):
    """A learned, never negative gate on the increment.

        x' = ReLU(k)·f(x) + x

    The general u = g(k)·r(x) + (1 − g(k))·x becomes this where r(x) = f(x) + x. Decay on k costs
    accuracy in the paper, and ``optim.connection_weight_decay`` is 0 unless it is set.

    Paper: Savarese et al. 2016, Residual Gates, arXiv 1611.01260, section 2
    Parameters: per layer 1
    Identity: at the start, k = 1
    Kept for backward: per layer 1 activation, f

    Args:
        k: at the start; the paper's 1. At 0 or below a gate is shut and gets no gradient.
    """

    takes_relu: ClassVar = True

    def __init__(self, depth: int, width: int, *, k: Annotated[float, Field(gt=0)] = 1.0) -> None:
        super().__init__(depth, width)
        self.k = nn.Parameter(torch.full((depth, 1), k))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer, gate in zip(layers, torch.relu(self.k).unbind(0), strict=True):
            f, weight = self.scaled_increment(layer, x, gate)
            x = carry(f, weight, [x], [None], alpha_is_positive=False, relu=self.relu_after_sum)
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """The gates, ReLU(k)."""
        return {"gate": torch.relu(self.k.detach()[:, 0])}


class ReZero(Connection):
    """A factor that starts at zero, in place of the layers' norms.

        x' = x + α·f(x)

    Paper: Bachlechner et al. 2020, ReZero is All You Need, arXiv 2003.04887, eq. 2
    Parameters: 1 for every ``share`` layers
    Identity: none: the layers have no norms
    Kept for backward: per layer 1 activation, f, in place of a norm's output

    Args:
        alpha: at the start; the paper's 0.
        share: how many consecutive layers share one α; the official code has one for attention
            and MLP, so 2 where each of them is a layer.
    """

    pre_norm: ClassVar = False
    identity: ClassVar = None

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        alpha: float = 0.0,
        share: Annotated[int, Field(gt=0)] = 2,
    ) -> None:
        super().__init__(depth, width)
        self.share = share
        self.alpha = nn.Parameter(torch.full((-(-depth // share), 1), alpha))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        alphas = self.alpha.unbind(0)
        for index, layer in enumerate(layers):
            alpha = alphas[index // self.share]
            x = carry(layer(x), alpha, [x], [None], alpha_is_positive=False)
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        alphas = self.alpha.detach()[:, 0]
        return {"alpha": alphas.repeat_interleave(self.share)[: self.depth].clone()}


class LayerScale(Connection):
    """A learned factor for each feature of the increment, small at the start.

        x' = x + diag(λ) f(x)

    Paper: Touvron et al. 2021, Going deeper with Image Transformers, arXiv 2103.17239, eq. 4
    Parameters: per layer D
    Identity: λ = 1
    Kept for backward: per layer 1 activation, f

    Args:
        start: λ at the start; None is the paper's 0.1 up to 18 blocks, 1e-5 up to 24 and 1e-6
            beyond. It counts attention and MLP as two, as the paper does: 2 layers are a block.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {"start": 1.0}

    def __init__(self, depth: int, width: int, *, start: float | None = None) -> None:
        super().__init__(depth, width)
        if start is None:
            start = 0.1 if depth <= 36 else 1e-5 if depth <= 48 else 1e-6
        self.scale = nn.Parameter(torch.full((depth, width), start))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer, scale in zip(layers, self.scale.unbind(0), strict=True):
            f, weight = self.scaled_increment(layer, x, scale)
            x = carry(f, weight, [x], [None], alpha_is_positive=False, relu=self.relu_after_sum)
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """λ, the mean over the features."""
        return {"lambda": self.scale.detach().mean(-1)}
