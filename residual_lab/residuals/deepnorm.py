"""DeepNorm: post-norm with a constant factor on the shortcut and smaller initial weights."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.residuals.connection import Connection, Layer


class DeepNorm(Connection):
    """DeepNorm for decoders.

        x' = norm(α·x + f(x)),   α = (2N)^¼,   values, outputs and MLPs × (8N)^−¼ at the start

    N blocks have 2N increments, attention and MLP. Layers are counted as increments, 2N of them,
    so that α = L^¼ and the factor is (4L)^−¼. The layers have no norms of their own; the
    model's last norm stays. The paper draws the weights Xavier normal (``model.init=xavier`` is
    near); here the factor is on whatever ``model.init`` draws.

    Paper: Wang et al. 2022, DeepNet, arXiv 2203.00555, figure 2 and table 1 (decoder-only)
    Parameters: per layer D, with a bias 2D, in place of the layer's own norm
    Identity: none: it normalises after the sum
    Kept for backward: the sum and its norm, as much as plain keeps

    Args:
        norm: ``layernorm``, as the paper, or ``rmsnorm``.
        bias: of the layer norm.
        epsilon: of the norm.
        alpha, gain: None: the paper's, as above.
    """

    pre_norm: ClassVar = False
    identity: ClassVar = None

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        norm: Literal["layernorm", "rmsnorm"] = "layernorm",
        bias: bool = True,
        epsilon: float = 1e-5,
        alpha: float | None = None,
        gain: float | None = None,
    ) -> None:
        super().__init__(depth, width)
        self.norm, self.epsilon = norm, epsilon
        self.alpha = depth**0.25 if alpha is None else alpha
        gain = (4 * depth) ** -0.25 if gain is None else gain
        self.initial_gains: Mapping[str, float] = dict.fromkeys(
            ("values", "outputs", "mlp_inputs"), gain
        )
        self.scale = nn.Parameter(torch.ones(depth, width))
        self.bias = (
            nn.Parameter(torch.zeros(depth, width)) if bias and norm == "layernorm" else None
        )

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        none: list[Tensor | None] = [None] * self.depth
        biases = none if self.bias is None else self.bias.unbind(0)
        for layer, scale, bias in zip(layers, self.scale.unbind(0), biases, strict=True):
            x = self._norm(torch.add(layer(x), x, alpha=self.alpha), scale, bias)
        return x

    def _norm(self, x: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
        if self.norm == "rmsnorm":
            return F.rms_norm(x, (self.width,), scale, self.epsilon)
        return F.layer_norm(x, (self.width,), scale, bias, self.epsilon)
