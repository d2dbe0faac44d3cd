"""ELC-BERT: every layer counts, each reads a convex combination of all earlier outputs."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_weights import triangle
from residual_lab.residuals.mixing import weighted_sum


class ElcBert(Connection):
    """ELC-BERT, all variants.

        h_{n+1} = f(Σ_{j≤n} softmax(a_n)_j·h_j),   h_0 = x

    There is no residual stream. What a block adds to what inside depends on the variant, with
    m the combination and both branches of the block:

        ``base``        a = (0, …, 0, 1):  u = attention(m);  h = u + mlp(u)
        ``zero``        a = 0:             u = attention(m);  h = u + mlp(m + u)
        ``normalized``  as zero, and h is layer-normalised without scale or bias

    The first layer has one source, so no logits. An MLP that is a layer by itself reads m.

    Paper: Georges Gabriel Charpentier and Samuel 2023, Not all layers are equally as important,
        arXiv 2311.02265, section 3 and its ablations
    Parameters: L(L + 1)/2 − 1, with a weighted output + L + 1
    Identity: none: the weights of a sum add up to one, and f is not added to anything
    Kept for backward: per layer 1 activation, h

    Args:
        variant: as above.
        weighted_output: the output is one more combination, of all layers (a = 0); otherwise it
            is the last layer's.
    """

    identity: ClassVar = None

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        variant: Literal["base", "zero", "normalized"] = "base",
        weighted_output: bool = False,
    ) -> None:
        super().__init__(depth, width)
        self.variant = variant
        self.weighted_output = weighted_output
        last = float(variant == "base")
        rows = [torch.tensor([0.0] * n + [last]) for n in range(1, depth)]
        rows += [torch.zeros(depth + 1)] if weighted_output else []
        self.sources = [len(row) for row in rows]
        self.logits = nn.Parameter(torch.cat([*rows, torch.zeros(0)]))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        weights = [torch.softmax(a, 0).unsqueeze(1).unbind(0) for a in self._rows()]
        outputs = [x]
        for index, layer in enumerate(layers):
            mixed = weighted_sum(weights[index - 1], outputs) if index else x
            if self.variant == "base":
                h = layer(torch.zeros_like(mixed), mixed, mixed, mixed)  # nothing is added to m
            else:
                h = layer(mixed)
            if self.variant == "normalized":
                h = F.layer_norm(h, (self.width,))
            outputs.append(h)
        return weighted_sum(weights[-1], outputs) if self.weighted_output else outputs[-1]

    @torch.no_grad()
    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """The softmax of a_n, as the paper's figures; the first layer has no choice."""
        rows = {n: torch.softmax(a, 0) for n, a in enumerate(self._rows(), 1)}
        return {"weights": triangle(self.depth, rows)} if rows else {}

    def _rows(self) -> Sequence[Tensor]:
        """Return a_n of each layer but the first, and of the output if it has one."""
        return self.logits.split(self.sources)
