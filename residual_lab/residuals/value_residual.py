"""Value residual: every attention mixes in the values of the first."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_weights import by_layer


class ValueResidual(Connection):
    """ResFormer: a residual connection between the values of attentions.

        x' = x + f(x), where attention n > 1 uses  V'_n = λ₁·V_1 + λ₂·V_n

    V are the projected values, before they are split into heads. λ₁ = 1, λ₂ = 0 is SVFormer:
    all attentions share the first one's values.

    Paper: Zhou et al. 2024, Value Residual Learning, arXiv 2410.17897, eq. 5 and 6
    Parameters: 0; learned: 2 per layer after the first (where MLPs are layers, theirs are unused)
    Identity: λ₁ = 0, λ₂ = 1
    Kept for backward: nothing more; learned: V_n per attention

    Args:
        first: λ₁, the paper's 0.5.
        own: λ₂, the paper's 0.5.
        learn: learn both (Learnable-ResFormer).
    """

    edits_values: ClassVar = True
    identity: ClassVar = {"first": 0.0, "own": 1.0}

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        first: float = 0.5,
        own: float = 0.5,
        learn: bool = False,
    ) -> None:
        super().__init__(depth, width)
        self.first, self.own = first, own
        if learn:
            self.weights = nn.Parameter(torch.tensor([[first, own]]).repeat(depth - 1, 1))
        self.learn = learn

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        values: list[Tensor] = []  # V_1, once the first layer has run
        x = x + layers[0](x, edit_values=partial(_keep, values))
        firsts, owns = self._weights()
        for layer, first, own in zip(layers[1:], firsts, owns, strict=True):
            x = x + layer(x, edit_values=partial(_mix, values, first, own))
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """λ₁ and λ₂ where they are learned; the first layer has none."""
        if not self.learn:
            return {}
        places = range(1, self.depth)
        first, own = (by_layer(self.depth, places, w) for w in self.weights.detach().unbind(1))
        return {"lambda_first": first, "lambda_own": own}

    def _weights(self) -> Sequence[Sequence[Tensor | float]]:
        """Return λ₁ and λ₂ of each layer after the first."""
        if self.learn:
            return [weights.unbind(0) for weights in self.weights.unbind(1)]
        return [[self.first] * (self.depth - 1), [self.own] * (self.depth - 1)]


def _keep(values: list[Tensor], value: Tensor) -> Tensor:
    if not values:  # a checkpointed layer runs again in backward
        values.append(value)
    return value


def _mix(values: list[Tensor], first: Tensor | float, own: Tensor | float, value: Tensor) -> Tensor:
    return first * values[0] + own * value
