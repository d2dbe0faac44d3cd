"""Toy layers, and the comparison of a connection with its formula written out."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from residual_lab.residuals import Connection

WIDTH = 6


class ToyLayer(nn.Module):
    """A layer whose increment tells its inputs apart: tanh(A x + B q + C k + D v)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.maps = nn.Parameter(torch.randn(4, width, width) / width**0.5)

    def forward(
        self,
        x: Tensor,
        q: Tensor | None = None,
        k: Tensor | None = None,
        v: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        inputs = [x if y is None else y for y in (x, q, k, v)]
        return torch.tanh(sum(y @ m for y, m in zip(inputs, self.maps, strict=True)))


def toy_layers(depth: int, width: int = WIDTH) -> nn.ModuleList:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.ModuleList(ToyLayer(width) for _ in range(depth)).double()


def count(connection: nn.Module) -> int:
    return sum(parameter.numel() for parameter in connection.parameters())


def check_against(
    connection: Connection,
    layers: Sequence[nn.Module],
    formula: Callable[[Tensor], Tensor],
    *,
    jiggle: float = 0.3,
    width: int = WIDTH,
) -> None:
    """Compare output and every gradient with ``formula``'s, in float64, at moved parameters."""
    connection.double()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in connection.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(jiggle * noise)
    x = torch.randn(2, 5, width, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 5, width, generator=generator, dtype=torch.float64)
    wanted = [x, *connection.parameters(), *(p for layer in layers for p in layer.parameters())]
    found, expected = connection(x, layers), formula(x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    pairs = zip(
        torch.autograd.grad((found * weight).sum(), wanted, allow_unused=True),
        torch.autograd.grad((expected * weight).sum(), wanted, allow_unused=True),
        strict=True,
    )
    for mine, theirs in pairs:
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
