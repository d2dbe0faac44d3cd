"""Attention residuals: each layer attends to the outputs of all earlier ones."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.low_rank import project_normed
from residual_lab.residuals.mixing import weighted_sum


class AttnRes(Connection):
    """Attention residuals, full and in blocks.

        h_l = Σ_i softmax_i(w_l · norm(v_i)) v_i,   v_0 = x,   v_{l+1} = f_l(h_l)

    Full: the sources are the embedding and every increment. In blocks: they are the embedding,
    the sum of each finished block's increments and the sum so far of the block that layer l is
    in. The last layer's successor is the output, with a query of its own. norm is an RMS norm
    without a scale, which would only multiply w. There is no 1/√D.

    Queries start at zero: every layer reads the *average* of its sources, which is not plain's
    sum; the model's norms take the difference in size. The first layer has one source and so
    no query.

    Paper: Kimi 2026, Attention Residuals, arXiv 2603.15031
    Parameters: per layer D
    Identity: none: the weights of a sum add up to one
    Kept for backward: per layer f (in blocks: the block's sum so far)

    Args:
        blocks: how many blocks at most, each of ⌈L / blocks⌉ layers; the paper takes about 8.
            None: full.
    """

    identity: ClassVar = None

    def __init__(
        self, depth: int, width: int, *, blocks: Annotated[int, Field(gt=0)] | None = None
    ) -> None:
        super().__init__(depth, width)
        self.size = 1 if blocks is None else -(-depth // blocks)  # layers of a block
        self.w = nn.Parameter(torch.zeros(depth, width))  # of layers 1 … L − 1 and the output

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        sources, scores = [x], [self._scores(x, 1)]  # finished, and how queries like them
        partial: Tensor | None = None
        h = x
        for index, layer in enumerate(layers, 1):
            f = layer(h)
            partial = f if partial is None else partial + f
            if index % self.size == 0:
                sources.append(partial)
                scores.append(self._scores(partial, index))
                partial = None
            likes = [score[-1 - self.depth + index] for score in scores]
            if partial is None:
                h = _attend(sources, likes)
            else:
                like = project_normed(partial, self.w[index - 1, :, None])[..., 0]
                h = _attend([*sources, partial], [*likes, like])
        return h

    def _scores(self, source: Tensor, first: int) -> Sequence[Tensor]:
        """Return w_l · norm(v) for the queries l = first … L, each (…,)."""
        return project_normed(source, self.w[first - 1 :].mT).unbind(-1)


def _attend(sources: Sequence[Tensor], scores: Sequence[Tensor]) -> Tensor:
    weights = torch.softmax(torch.stack(list(scores)), 0)[..., None]
    return weighted_sum(weights.unbind(0), sources)
