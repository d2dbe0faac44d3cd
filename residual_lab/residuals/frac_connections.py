"""Frac-Connections: hyper-connections between fractions of one stream's features."""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from residual_lab.errors import ConfigError
from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.hyper_connections import Dynamic
from residual_lab.residuals.streams import mix, static


class FracConnections(Connection):
    """Frac-Connections: the stream is split into m fractions of D/m features.

        H = (x¹, …, xᵐ);  H' = AᵀH + b ⊙ (f¹, …, fᵐ),   f = f(concat(YᵀH))

    The layer reads m mixtures of the fractions, joined; each fraction of its increment is
    written back to its own fraction with a factor. So Y (m × m) stands for the n × 1 of
    hyper-connections, and nothing is expanded. Dynamic adds ``s·tanh(norm(Hᵢ) W)`` for each
    token and fraction, norm an RMS norm of each fraction without a scale.

    Paper: Zhu et al. 2025, Frac-Connections, arXiv 2503.14125, section 3
    Parameters: per layer static 2m² + m, dynamic + (D/m)(2m + 1) + 2
    Identity: at the start (Y = A = I, b = 1, W = 0)
    Kept for backward: per layer 3 activations: H, its mixture that the layer reads, and f

    Args:
        m: fractions; must divide the width.
        dynamic: add the part that depends on the token.
        bounded: the tanh around it.
        scale: s of Y and A, and of b, at the start.
    """

    identity: ClassVar = {}

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        m: Annotated[int, Field(gt=0)] = 4,
        dynamic: bool = True,
        bounded: bool = True,
        scale: float = 0.01,
    ) -> None:
        super().__init__(depth, width)
        if width % m:
            raise ConfigError(f"residual.m={m}: must divide model.width={width}")
        self.m, self.dynamic, self.bounded = m, dynamic, bounded
        self.Y = nn.Parameter(torch.eye(m).repeat(depth, 1, 1))
        self.A = nn.Parameter(torch.eye(m).repeat(depth, 1, 1))
        self.b = nn.Parameter(torch.ones(depth, m))
        if dynamic:
            self.W = nn.Parameter(torch.zeros(depth, width // m, 2 * m + 1))  # for Y, A, b
            self.s_alpha = nn.Parameter(torch.full((depth, 1), scale))
            self.s_beta = nn.Parameter(torch.full((depth, 1), scale))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        fractions = self._split(x)
        for layer, weights, dynamic in zip(layers, self._weights(x), self._maps(), strict=True):
            Y, A, b = weights
            if dynamic is not None:
                delta, delta_b = dynamic(fractions, self.bounded)
                Y, A, b = Y + delta[:, : self.m], A + delta[:, self.m :], b + delta_b
            f = self._split(layer(_join(mix(Y, fractions))))
            fractions = mix(A, fractions, b, f)
        return _join(fractions)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.m, -1)).movedim(-2, 0)

    def _weights(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for Y, A, b in zip(*(w.unbind(0) for w in (self.Y, self.A, self.b)), strict=True):
            yield static(Y, x.ndim), static(A, x.ndim), static(b, x.ndim)

    def _maps(self) -> Sequence[Dynamic | None]:
        if not self.dynamic:
            return [None] * self.depth
        parts = (self.W.unbind(0), self.s_alpha.unbind(0), self.s_beta.unbind(0))
        return [Dynamic(*part) for part in zip(*parts, strict=True)]


def _join(fractions: Tensor) -> Tensor:
    return fractions.movedim(0, -2).flatten(-2)
