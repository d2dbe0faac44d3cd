"""Low-rank maps of the stream, one pair of matrices per layer and lag."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from residual_lab.residuals.mixing import Weight


class LowRank(nn.Module):
    """The pairs A (D → r) and B (r → D) of every layer, one for each of ``pairs`` lags.

    A starts column-orthogonal, ``A[i, j] = 1/√(rD)`` where ``i mod r == j`` (section 3.3,
    footnote 2, used for the LLMs), or Xavier normal (used for ResNet). B starts at zero, or
    like A where a norm follows, since the derivative of a norm at zero is about 1/√ε.
    """

    def __init__(
        self, depth: int, pairs: int, width: int, rank: int, init: str, zero_up: bool
    ) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(depth, pairs, width, rank))
        self.up = nn.Parameter(torch.zeros(depth, pairs, rank, width))
        with torch.no_grad():
            _start(self.down, init)
            if not zero_up:
                _start(self.up.mT, init)

    def forward(self) -> Iterator[tuple[Sequence[Tensor], Tensor]]:
        """Yield, for each layer, A of each lag (D, r) and B of all lags (pairs·r, D)."""
        for down, up in zip(self.down.unbind(0), self.up.unbind(0), strict=True):
            yield down.unbind(0), up.flatten(0, 1)


def _start(matrices: Tensor, init: str) -> None:
    """Fill the (…, D, r) matrices in place."""
    *_, width, rank = matrices.shape
    if init == "xavier":
        matrices.normal_(std=(2 / (width + rank)) ** 0.5)
    else:
        rows, columns = torch.arange(width)[:, None], torch.arange(rank)
        matrices.copy_((rows % rank == columns) / (rank * width) ** 0.5)


def inverse_rms(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Return 1/√(mean(x²) + ε) over the features, (…, 1)."""
    return (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()


def project(x: Tensor, down: Tensor, scale: Weight) -> Tensor:
    """Return x A, or with a scale norm(x) A."""
    return x @ down if scale is None else project_normed(x, scale[:, None] * down)


def project_normed(x: Tensor, down: Tensor) -> Tensor:
    """Return norm(x) A without making norm(x): a scale is part of A, the rms comes after."""
    return (x @ down) * inverse_rms(x)


def project_layer_normed(x: Tensor, down: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return (x − mean(x))/√(var(x) + ε) A: to centre A's columns is to centre x."""
    centred = down - down.mean(0, keepdim=True)
    return (x @ centred) * (x.var(-1, correction=0, keepdim=True) + epsilon).rsqrt()
