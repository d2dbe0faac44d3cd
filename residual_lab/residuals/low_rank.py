"""Low-rank maps of the stream, one pair of matrices per layer and lag."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.residuals.mixing import Weight


class LowRank(nn.Module):
    """The pairs A (D → r) and B (r → D) of every layer, one for each of ``pairs`` lags.

    A starts column-orthogonal, ``A[i, j] = 1/√(rD)`` where ``i mod r == j`` (section 3.3,
    footnote 2, used for the LLMs), or Xavier normal (used for ResNet). B starts at zero, or
    like A where a norm follows, since the derivative of a norm at zero is about 1/√ε.
    ``down`` holds Aᵀ: products with so narrow a matrix are faster when its long rows are whole.
    """

    def __init__(
        self, depth: int, pairs: int, width: int, rank: int, init: str, zero_up: bool
    ) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(depth, pairs, rank, width))
        self.up = nn.Parameter(torch.zeros(depth, pairs, rank, width))
        with torch.no_grad():
            _start(self.down.mT, init)
            if not zero_up:
                _start(self.up.mT, init)

    def forward(self) -> list[Tensor]:
        """Return, for each layer, B of all its lags (pairs·r, D)."""
        return [up.flatten(0, 1) for up in self.up.unbind(0)]


def _start(matrices: Tensor, init: str) -> None:
    """Fill the (…, D, r) matrices in place."""
    *_, width, rank = matrices.shape
    if init == "xavier":
        matrices.normal_(std=(2 / (width + rank)) ** 0.5)
    else:
        rows, columns = torch.arange(width)[:, None], torch.arange(rank)
        matrices.copy_((rows % rank == columns) / (rank * width) ** 0.5)


class Projections:
    """z = x A of each activation x, for all layers that will read it in one product.

    Args:
        down: Aᵀ of every layer and lag (layers, pairs, r, D).
        readers: for each activation in turn, the layers and pairs that it is projected by.
        scales: of a norm on x, for each layer (D,), or None for each.
    """

    def __init__(
        self,
        down: Tensor,
        readers: Sequence[Sequence[tuple[int, int]]],
        scales: Sequence[Weight],
    ) -> None:
        self.down = [pairs.unbind(0) for pairs in down.unbind(0)]
        self.readers, self.scales = readers, scales
        self.z: list[dict[tuple[int, int], Tensor]] = []

    def append(self, x: Tensor) -> None:
        """Project the next activation."""
        readers = self.readers[len(self.z)]
        if not readers:
            self.z.append({})
            return
        matrices = [self._matrix(*reader) for reader in readers]
        z = F.linear(x, matrices[0] if len(matrices) == 1 else torch.cat(matrices))
        if self.scales[0] is not None:
            z = z * inverse_rms(x)
        self.z.append(dict(zip(readers, z.split(z.shape[-1] // len(readers), -1), strict=True)))

    def _matrix(self, layer: int, pair: int) -> Tensor:
        matrix, scale = self.down[layer][pair], self.scales[layer]
        return matrix if scale is None else matrix * scale


def inverse_rms(x: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Return 1/√(mean(x²) + ε) over the features, (…, 1)."""
    return (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()


def project_normed(x: Tensor, down: Tensor) -> Tensor:
    """Return norm(x) A without making norm(x): a scale is part of A, the rms comes after."""
    return (x @ down) * inverse_rms(x)


def project_layer_normed(x: Tensor, down: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Return (x − mean(x))/√(var(x) + ε) A: to centre A's columns is to centre x."""
    centred = down - down.mean(0, keepdim=True)
    return (x @ centred) * (x.var(-1, correction=0, keepdim=True) + epsilon).rsqrt()
