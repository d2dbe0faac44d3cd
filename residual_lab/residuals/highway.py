"""Highway layers, and the gates that they and others have."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.residuals.connection import Connection, Layer


class Gates(nn.Module):
    """One gate σ(W x + b) for each layer and feature."""

    def __init__(self, depth: int, width: int, bias: float, weight_std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(depth, width, width).normal_(std=weight_std))
        self.bias = nn.Parameter(torch.full((depth, width), bias))

    def forward(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Yield each layer's gate, a function of x."""
        for weight, bias in zip(self.weight.unbind(0), self.bias.unbind(0), strict=True):
            yield partial(_gate, weight=weight, bias=bias)

    def without_input(self) -> Tensor:
        """Return what the biases alone open of each layer's gate, the mean over features, (L,)."""
        return torch.sigmoid(self.bias.detach()).mean(-1)


def _gate(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.sigmoid(F.linear(x, weight, bias))


class Highway(Connection):
    """A highway layer: a gate divides between the increment and the stream.

        x' = T ⊙ f(x) + (1 − T) ⊙ x,   T = σ(W x + b)

    Paper: Srivastava et al. 2015, Highway Networks, arXiv 1505.00387, eq. 3
    Parameters: per layer D² + D
    Identity: none; T = 0, to which a negative b leans, copies x, T = 1 is f(x) alone
    Kept for backward: per layer 2 activations, T and f(x) − x

    Args:
        bias: b at the start; negative, so that the layer copies; the paper gives −1, −3, ….
        weight_std: of W at the start, normal; the paper does not say.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = None

    def __init__(
        self, depth: int, width: int, *, bias: float = -2.0, weight_std: float = 0.02
    ) -> None:
        super().__init__(depth, width)
        self.gates = Gates(depth, width, bias, weight_std)

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer, gate in zip(layers, self.gates(), strict=True):
            x = self.after_sum(x + gate(x) * (layer(x) - x))  # T ⊙ f + (1 − T) ⊙ x
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """σ(b), the part of the gates that does not depend on the token."""
        return {"gate": self.gates.without_input()}
