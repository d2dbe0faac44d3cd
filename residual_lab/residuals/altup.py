"""AltUp: a wide stream of which each layer computes on one part and predicts the others."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_weights import unfold
from residual_lab.residuals.streams import Reduce, expand, mix, reduce, reduce_weights, static


class AltUp(Connection):
    """Alternating updates, recycled.

        predict  x̂_i = Σ_j p_ij·x_j
        compute  x̃ = x_{j*} + f(x_{j*})
        correct  x'_i = x̂_i + g_i·(x̃ − x̂_{j*})

    K blocks of width D, one of which, j*, each layer computes on. The embedding starts all of
    them (the paper's Recycled-AltUp, which widens no embedding) and their sum is the output.
    Everything but f is linear in the blocks, so one mix per layer does it:
    ``x'_i = Σ_j (p_ij + g_i·(δ_{j j*} − p_{j* j}))·x_j + g_i·f(x_{j*})``.

    Paper: Baykal et al. 2023, Alternating Updates, arXiv 2301.13310, algorithm 1
    Parameters: per layer K² + K
    Identity: at the start (p = I, g = 1) if the blocks are averaged
    Kept for backward: per layer K + 1 activations, the blocks and f

    Args:
        k: blocks; the paper's 2.
        select: j*: ``alternating`` (layer index mod K, the paper's better choice) or ``same``.
        reduce: how the blocks become the output: ``sum``, as in the paper, or ``mean``.
    """

    identity: ClassVar = {"reduce": "mean"}

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        k: Annotated[int, Field(gt=0)] = 2,
        select: Literal["alternating", "same"] = "alternating",
        reduce: Reduce = "sum",
    ) -> None:
        super().__init__(depth, width)
        self.k, self.reduce = k, reduce
        self.active = [index % k if select == "alternating" else 0 for index in range(depth)]
        self.p = nn.Parameter(torch.eye(k).repeat(depth, 1, 1))
        self.g = nn.Parameter(torch.ones(depth, k))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        blocks = expand(x, self.k)
        gs = self.g.unbind(0)
        for layer, j, linear, g in zip(layers, self.active, self._linear(), gs, strict=True):
            f = layer(blocks[j])
            blocks = mix(static(linear.T, x.ndim), blocks, static(g, x.ndim), f)
        return reduce(blocks, self.reduce)

    @torch.no_grad()
    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """The dense connection that the blocks unfold to."""
        read = torch.eye(self.k, dtype=self.g.dtype, device=self.g.device)[self.active]
        mixes = torch.stack([linear.T for linear in self._linear()])
        output = reduce_weights(self.k, self.reduce, self.g)
        return {"weights": unfold(read, mixes, self.g, output)}

    def _linear(self) -> list[Tensor]:
        """Return, for each layer, what maps x to x' but for f."""
        own = torch.eye(self.k, dtype=self.p.dtype, device=self.p.device)  # δ
        layers = zip(self.active, self.p.unbind(0), self.g.unbind(0), strict=True)
        return [p + torch.outer(g, own[j] - p[j]) for j, p, g in layers]
