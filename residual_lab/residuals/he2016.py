"""The shortcuts that He et al. 2016 tried in place of the identity (their table 1)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.highway import Gates, Highway


class ConstantScaling(Connection):
    """A constant factor on the shortcut, and if wanted on the increment.

        x' = λ·x + μ·f(x)

    Paper: He et al. 2016, arXiv 1603.05027, section 3.1 "constant scaling"
    Parameters: 0
    Identity: λ = μ = 1

    Args:
        shortcut: λ; the paper's 0.5.
        increment: μ; None is 1 − λ. With 1 the paper's networks failed to converge.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {"shortcut": 1.0, "increment": 1.0}

    def __init__(
        self, depth: int, width: int, *, shortcut: float = 0.5, increment: float | None = None
    ) -> None:
        super().__init__(depth, width)
        self.shortcut = shortcut
        self.increment = 1 - shortcut if increment is None else increment

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer in layers:
            x = self.after_sum(torch.add(self.shortcut * x, layer(x), alpha=self.increment))
        return x


class ExclusiveGating(Highway):
    """A gate that divides between the shortcut and the increment: a highway layer.

        x' = (1 − g) ⊙ x + g ⊙ f(x),   g = σ(W x + b)

    Paper: He et al. 2016, arXiv 1603.05027, section 3.1 "exclusive gating"
    Parameters: per layer D² + D
    Identity: none; g = 0 copies x, g = 1 is f(x) without a shortcut
    Kept for backward: per layer 2 activations, g and f(x) − x

    Args:
        bias: b at the start; the paper tries 0 to −10 and finds −6 best.
        weight_std: of W at the start, normal.
    """

    def __init__(
        self, depth: int, width: int, *, bias: float = -6.0, weight_std: float = 0.02
    ) -> None:
        super().__init__(depth, width, bias=bias, weight_std=weight_std)


class ShortcutGating(Connection):
    """A gate on the shortcut alone.

        x' = (1 − g) ⊙ x + f(x),   g = σ(W x + b)

    Paper: He et al. 2016, arXiv 1603.05027, section 3.1 "shortcut-only gating"
    Parameters: per layer D² + D
    Identity: g = 0, so b far below zero
    Kept for backward: per layer 1 activation, g

    Args:
        bias: b at the start; the paper tries 0 to −10 and finds −6 best.
        weight_std: of W at the start, normal.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {"bias": -100.0, "weight_std": 0.0}

    def __init__(
        self, depth: int, width: int, *, bias: float = -6.0, weight_std: float = 0.02
    ) -> None:
        super().__init__(depth, width)
        self.gates = Gates(depth, width, bias, weight_std)

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer, gate in zip(layers, self.gates(), strict=True):
            x = self.after_sum(x - gate(x) * x + layer(x))
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """σ(b), the part of the gates that does not depend on the token."""
        return {"gate": self.gates.without_input()}


class LinearShortcut(Connection):
    """A learned linear map on the shortcut: a 1×1 convolution.

        x' = W x + f(x)

    Paper: He et al. 2016, arXiv 1603.05027, section 3.1 "1×1 convolutional shortcut"
    Parameters: per layer D²
    Identity: init = identity
    Kept for backward: nothing that plain does not keep

    Args:
        init: of W: ``he``, N(0, 2/D), as the paper initialises convolutions; ``xavier``,
            N(0, 1/D), which keeps the variance of x; or ``identity``.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {"init": "identity"}

    def __init__(
        self, depth: int, width: int, *, init: Literal["he", "xavier", "identity"] = "he"
    ) -> None:
        super().__init__(depth, width)
        self.weight = nn.Parameter(torch.eye(width).repeat(depth, 1, 1))
        if init != "identity":
            variance = {"he": 2.0, "xavier": 1.0}[init] / width
            nn.init.normal_(self.weight, std=variance**0.5)

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer, weight in zip(layers, self.weight.unbind(0), strict=True):
            x = self.after_sum(F.linear(x, weight).to(x.dtype) + layer(x))
        return x


class DropoutShortcut(Connection):
    """Dropout on the shortcut.

        x' = dropout(x) + f(x)

    Paper: He et al. 2016, arXiv 1603.05027, section 3.1 "dropout shortcut"
    Parameters: 0
    Identity: p = 0
    Kept for backward: per layer the mask: 1 activation on a CPU, a byte for each element on a GPU

    Args:
        p: how often an element is dropped; the paper's 0.5, with which its networks failed.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {"p": 0.0}

    def __init__(
        self, depth: int, width: int, *, p: Annotated[float, Field(ge=0, lt=1)] = 0.5
    ) -> None:
        super().__init__(depth, width)
        self.p = p

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer in layers:
            x = self.after_sum(F.dropout(x, self.p, self.training and self.p > 0) + layer(x))
        return x
