"""DWAtt: attention over layers, once, after the last of them."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.mixing import weighted_sum


class DepthWiseAttention(Connection):
    """Depth-wise attention over the outputs of all layers.

        z_{l+1} = z_l + f(z_l);   y = z_L + Σ_n softmax_n(q·k_n) v_n
        k_n = W_K p_n,   v_n = norm_n(F_n(z_n)),   q = 1 + elu(z_L + F_Q(z_L))
        F(z) = W norm(gelu(U z)),  U: D → D/2, W: D/2 → D

    Keys do not depend on the token; p_n are learned. n counts the layers, not the embedding.
    norm are layer norms with scale and bias. U and W start N(0, 1/fan-in), p uniform in (0, 1).

    Paper: ElNokrashy et al. 2022, Depth-Wise Attention, arXiv 2209.15168, eq. 4-11 (as quoted by
        re-implementations)
    Parameters: (L + 1)(2hD + 2h) + 2LD + pD + pL with the hidden width h = D/2 and p = 24: about
        (L + 1)D² + 24D
    Identity: none
    Kept for backward: per layer z, the hidden activations and the values, 5 activations

    Args:
        positions: p, the width of p_n.
        bottleneck: h is this share of D.
    """

    identity: ClassVar = None

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        positions: Annotated[int, Field(gt=0)] = 24,
        bottleneck: Annotated[float, Field(gt=0, le=1)] = 0.5,
    ) -> None:
        super().__init__(depth, width)
        hidden = max(1, round(bottleneck * width))
        maps = depth + 1  # of each layer, and of the query
        self.down = nn.Parameter(torch.empty(maps, hidden, width).normal_(std=width**-0.5))
        self.up = nn.Parameter(torch.empty(maps, width, hidden).normal_(std=hidden**-0.5))
        self.inner_scale = nn.Parameter(torch.ones(maps, hidden))
        self.inner_bias = nn.Parameter(torch.zeros(maps, hidden))
        self.scale = nn.Parameter(torch.ones(depth, width))
        self.bias = nn.Parameter(torch.zeros(depth, width))
        self.positions = nn.Parameter(torch.rand(depth, positions))
        self.key = nn.Parameter(torch.empty(width, positions).normal_(std=positions**-0.5))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        states = []
        for layer in layers:
            x = x + layer(x)
            states.append(x)
        *maps, query_map = zip(
            self.down.unbind(0),
            self.up.unbind(0),
            self.inner_scale.unbind(0),
            self.inner_bias.unbind(0),
            strict=True,
        )
        q = 1 + F.elu(x + _bottleneck(x, *query_map))
        k = self.positions @ self.key.mT  # (L, D)
        weights = torch.softmax(q @ k.mT, -1).unsqueeze(-2).unbind(-1)
        norms = zip(self.scale.unbind(0), self.bias.unbind(0), strict=True)
        values = [
            F.layer_norm(_bottleneck(z, *m), (self.width,), *norm)
            for z, m, norm in zip(states, maps, norms, strict=True)
        ]
        return x + weighted_sum(weights, values)


def _bottleneck(z: Tensor, down: Tensor, up: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Return W norm(gelu(U z))."""
    hidden = F.gelu(F.linear(z, down))
    return F.linear(F.layer_norm(hidden, hidden.shape[-1:], scale, bias), up)
