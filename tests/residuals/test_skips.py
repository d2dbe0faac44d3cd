"""Input skips and U-Net skips against their formulas."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from residual_lab.models import Decoder
from residual_lab.residuals.skips import InputSkip, UNetSkips
from tests.residuals.conftest import saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


def test_input_skip() -> None:
    connection, layers = InputSkip(4, 6), toy_layers(4)

    def formula(x: Tensor) -> Tensor:
        start = x
        for (stream, skip), layer in zip(connection.weights, layers, strict=True):
            x = stream * x + skip * start
            x = x + layer(x)
        return x

    assert count(connection) == 2 * 4
    assert connection.weights[:, :, 0].tolist() == [[1, 0]] * 4
    check_against(connection, layers, formula)


@pytest.mark.parametrize("depth", [4, 5])
def test_unet_skips(depth: int) -> None:
    """The layer at L − 1 − i reads what the layer at i wrote."""
    connection, layers = UNetSkips(depth, 6), toy_layers(depth)

    def formula(x: Tensor) -> Tensor:
        written: dict[int, Tensor] = {}
        for index, layer in enumerate(layers):
            mirrored = depth - 1 - index
            if mirrored < index:
                x = x + connection.weights[index - (depth - depth // 2)] * written[mirrored]
            x = x + layer(x)
            written[index] = x
        return x

    assert count(connection) == depth // 2
    assert torch.equal(connection.weights, torch.ones(depth // 2, 1))
    check_against(connection, layers, formula)


@pytest.mark.parametrize(("name", "more"), [("input_skip", 4), ("unet_skips", 1)])
def test_kept_for_backward(name: str, more: int, tiny: Build) -> None:
    plain = saved_units(tiny("residual=plain"))
    assert saved_units(tiny(f"residual={name}")) <= plain + more + 0.5
