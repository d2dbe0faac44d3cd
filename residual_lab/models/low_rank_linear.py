"""A stack of linear layers of low rank: the toy of DeepCrossAttention's figure 1.

Shapes: N examples, D width, R rank.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.config.models import LowRankLinearConfig
from residual_lab.models.model import Model
from residual_lab.models.recompute import recompute
from residual_lab.residuals.connection import EditValues


class LowRankLayer(nn.Module):
    """f(x) = x U W, with U (D, R) and W (R, D); no norm and no bias."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.U = nn.Parameter(torch.empty(width, rank))
        self.W = nn.Parameter(torch.empty(rank, width))

    def forward(
        self,
        x_ND: Tensor,
        q: Tensor | None = None,
        k: Tensor | None = None,
        v: Tensor | None = None,
        *,
        edit_values: EditValues | None = None,
    ) -> Tensor:
        """Read ``q``, by default ``x``; there are no keys or values."""
        return (x_ND if q is None else q) @ self.U @ self.W


class LowRankLinear(Model):
    """Vectors (N, D) to vectors (N, D), ``layers`` layers of ``rank``; 2·layers·rank·D parameters.

    Paper: DeepCrossAttention, arXiv 2502.06785, figure 1 and section 4. How the layers start is
    not printed; here all entries of U and W are from N(0, 1/D).
    """

    def __init__(self, config: LowRankLinearConfig, *, checkpoint_layers: bool = False) -> None:
        super().__init__()
        self.config, self.checkpoint_layers = config, checkpoint_layers
        self.layers = nn.ModuleList(
            LowRankLayer(config.width, config.rank) for _ in range(config.layers)
        )
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=config.width**-0.5)

    def forward(self, inputs_ND: Tensor) -> Tensor:
        return self.hidden(inputs_ND)

    def hidden(self, inputs_ND: Tensor) -> Tensor:
        """Return the output: there is no head."""
        recomputed = self.checkpoint_layers and torch.is_grad_enabled()
        layers = [partial(recompute, unit) if recomputed else unit for unit in self.layers]
        return self.connection(inputs_ND, layers)

    def loss(self, inputs_ND: Tensor, targets_ND: Tensor) -> Tensor:
        """Return the squared error, its mean over examples and features."""
        return F.mse_loss(self(inputs_ND), targets_ND)
