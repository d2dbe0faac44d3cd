"""Skips beside the residual stream: from the input, and from the first half to the second."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_weights import by_layer
from residual_lab.residuals.mixing import carry


class InputSkip(Connection):
    """The embedding is mixed into the stream before every layer.

        x' = x̃ + f(x̃),   x̃ = λ₀·x + λ₁·x₀

    Source: modded-nanogpt (Jordan et al.), "x0 skip", record 9
    Parameters: per layer 2
    Identity: at the start
    Kept for backward: per layer 1 activation, x

    Args:
        stream, input: λ₀ and λ₁ at the start.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {}

    def __init__(self, depth: int, width: int, *, stream: float = 1.0, input: float = 0.0) -> None:
        super().__init__(depth, width)
        self.weights = nn.Parameter(torch.tensor([[stream], [input]]).repeat(depth, 1, 1))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        start = x
        for layer, weights in zip(layers, self.weights.unbind(0), strict=True):
            stream, skip = weights.unbind(0)
            x = carry(x, stream, [start], [skip], alpha_is_positive=False)
            x = self.after_sum(x + layer(x))
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """λ₀, of the stream, and λ₁, of the input."""
        stream, skip = self.weights.detach()[..., 0].clone().unbind(1)
        return {"lambda_stream": stream, "lambda_input": skip}


class UNetSkips(Connection):
    """The second half of the layers also reads what the first half wrote, in reverse order.

        x' = x̃ + f(x̃),   x̃ = x in the first half,  x̃ = x + w_i·x_{L−i} in the second

        x₀ ─ f₀ ─ x₁ ─ f₁ ─ x₂ ─ f₂ ─ x₃ ─ f₃ ─      the second half pops what the first pushed,
                   │         └──w₂───┘     │          so f₂ reads x₂ + w₂·x₂, f₃ reads x₃ + w₃·x₁
                   └──────────w₃───────────┘

    With an odd number of layers the middle one stands between the halves and pops nothing.

    Source: modded-nanogpt (Jordan et al.), "U-Net skips", record 11
    Parameters: ⌊L/2⌋
    Identity: w = 0
    Kept for backward: 1 activation, what the first half ends with

    Args:
        weight: w at the start; 1 in the source.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {"weight": 0.0}

    def __init__(self, depth: int, width: int, *, weight: float = 1.0) -> None:
        super().__init__(depth, width)
        self.weights = nn.Parameter(torch.full((depth // 2, 1), weight))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        half = self.depth // 2
        pushed: list[Tensor] = []
        for layer in layers[:half]:
            x = self.after_sum(x + layer(x))
            pushed.append(x)
        for layer in layers[half : self.depth - half]:
            x = self.after_sum(x + layer(x))
        for layer, weight in zip(layers[self.depth - half :], self.weights.unbind(0), strict=True):
            x = carry(x, None, [pushed.pop()], [weight])
            x = self.after_sum(x + layer(x))
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """w of the second half."""
        places = range(self.depth - self.depth // 2, self.depth)
        return {"w": by_layer(self.depth, places, self.weights.detach()[:, 0])}
