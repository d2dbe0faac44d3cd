"""The LAuReL of Gemma 3n, which is not the paper's."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.residuals.connection import Connection, Layer


class LaurelGemma3n(Connection):
    """LAuReL as Gemma 3n computes it: beside attention, on the normalised input.

        n = norm_in(x);   y = (x + norm_post(f(n)) + n + norm_laurel(n A B)) / √2
        n = norm_in(x);   y = x + norm_post(f(n))                                 around the MLP

    What differs from the paper's ``α·f(x) + β·(x + x A B)``: the low-rank map reads the
    normalised stream and its output is normalised; the skip is x + n; the sum is divided by √2;
    nothing is learned of α and β; and MLPs have plain post-normed shortcuts. Norms are RMS norms
    with a scale that starts at 1, in place of the layers' own. A and B start N(0, 0.02²), as the
    published code has them: B = 0 would have no use for gradients behind a norm.

    Source: ``Gemma3nTextLaurelBlock`` in transformers, ``Laurel`` in google-deepmind/gemma
    Parameters: per layer 2D for its norms (plain has D), with LAuReL + 2rD + D
    Identity: none
    Kept for backward: per layer 3 activations more than plain, with LAuReL 2 more

    Args:
        rank: r; Gemma 3n's 64.
        every: LAuReL stands beside every so many layers, the first among them: 2 are the
            attentions where attention and MLP are layers; 1 is beside each layer.
        weight_std: of A and B at the start.
        epsilon: of the norms.
    """

    pre_norm: ClassVar = False
    identity: ClassVar = None

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        rank: Annotated[int, Field(gt=0)] = 64,
        every: Annotated[int, Field(gt=0)] = 2,
        weight_std: Annotated[float, Field(gt=0)] = 0.02,
        epsilon: Annotated[float, Field(gt=0)] = 1e-6,
    ) -> None:
        super().__init__(depth, width)
        self.every, self.epsilon = every, epsilon
        beside = -(-depth // every)
        self.norm_in = nn.Parameter(torch.ones(depth, width))
        self.norm_post = nn.Parameter(torch.ones(depth, width))
        self.norm_laurel = nn.Parameter(torch.ones(beside, width))
        self.left = nn.Parameter(torch.empty(beside, width, rank).normal_(std=weight_std))
        self.right = nn.Parameter(torch.empty(beside, rank, width).normal_(std=weight_std))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        norms = zip(self.norm_in.unbind(0), self.norm_post.unbind(0), strict=True)
        laurels = zip(
            self.left.unbind(0), self.right.unbind(0), self.norm_laurel.unbind(0), strict=True
        )
        for index, (layer, (norm_in, norm_post)) in enumerate(zip(layers, norms, strict=True)):
            n = self._norm(x, norm_in)
            y = x + self._norm(layer(n), norm_post)
            if index % self.every == 0:
                left, right, scale = next(laurels)
                y = (y + n + self._norm(n @ left @ right, scale)) * 0.5**0.5
            x = y
        return x

    def _norm(self, x: Tensor, scale: Tensor) -> Tensor:
        return F.rms_norm(x, (self.width,), scale, self.epsilon)
