"""Attention residuals against their formula."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from residual_lab.models import Decoder
from residual_lab.residuals.attnres import AttnRes
from tests.residuals.conftest import saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


def attend(sources: list[Tensor], w: Tensor) -> Tensor:
    scores = [
        (v / torch.sqrt((v**2).mean(-1, keepdim=True) + 1e-6) * w).sum(-1, keepdim=True)
        for v in sources
    ]
    total = sum(torch.exp(score) for score in scores)
    return sum(torch.exp(score) / total * v for score, v in zip(scores, sources, strict=True))


def formula(connection: AttnRes, layers: nn.ModuleList, size: int, x: Tensor) -> Tensor:
    """Every source list built anew from all increments."""
    increments: list[Tensor] = []

    def read(query: int) -> Tensor:
        blocks = [increments[i : i + size] for i in range(0, len(increments), size)]
        return attend([x, *(sum(block) for block in blocks)], connection.w[query - 1])

    for index, layer in enumerate(layers):
        increments.append(layer(read(index) if index else x))
    return read(len(layers))


@pytest.mark.parametrize(
    ("depth", "blocks", "size"), [(5, None, 1), (6, 3, 2), (7, 3, 3), (5, 2, 3), (4, 1, 4)]
)
def test_formula(depth: int, blocks: int | None, size: int) -> None:
    connection, layers = AttnRes(depth, 6, blocks=blocks), toy_layers(depth)
    assert count(connection) == depth * 6
    check_against(connection, layers, lambda x: formula(connection, layers, size, x))


def test_starts_as_the_average_of_its_sources_not_as_plain() -> None:
    connection, layers = AttnRes(3, 6).double(), toy_layers(3)
    x = torch.randn(2, 6, dtype=torch.float64)
    values = [x]
    for layer in layers:
        values.append(layer(torch.stack(values).mean(0)))
    torch.testing.assert_close(connection(x, layers), torch.stack(values).mean(0))
    assert AttnRes.identity is None


def test_there_is_no_square_root_of_the_width() -> None:
    """Two sources whose scores are ±1 share the weight as the logistic of 2 says."""
    connection = AttnRes(1, 4).double()
    with torch.no_grad():
        connection.w[:] = 0.25
    x = torch.ones(1, 4, dtype=torch.float64)  # w·norm(x) = 1
    out = connection(x, [lambda x: -x])
    share = 1 / (1 + math.exp(-2))
    torch.testing.assert_close(out, x * (2 * share - 1), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("name", "more"), [("attnres", 1.0), ("attnres_block", 1.0)])
def test_kept_for_backward(name: str, more: float, tiny: Build) -> None:
    """f per layer, and small things: scores and weights, 5 numbers for each source and token."""
    model = tiny(f"residual={name}")
    plain = saved_units(tiny("residual=plain", "residual.granularity=branch"))
    small = 5 * sum(range(1, model.depth + 2)) / 24
    assert saved_units(model) <= plain + model.depth * more + small
