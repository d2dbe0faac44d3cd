"""The shortcuts of He et al. 2016 and highway layers against their formulas."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.models import Decoder
from residual_lab.residuals.he2016 import (
    ConstantScaling,
    DropoutShortcut,
    ExclusiveGating,
    LinearShortcut,
    ShortcutGating,
)
from residual_lab.residuals.highway import Highway
from tests.residuals.conftest import saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


def gate(connection: nn.Module, layer: int, x: Tensor) -> Tensor:
    """1 / (1 + exp(−(W x + b))), written out."""
    logits = x @ connection.gates.weight[layer].T + connection.gates.bias[layer]
    return 1 / (1 + torch.exp(-logits))


def test_constant_scaling() -> None:
    layers = toy_layers(3)
    for shortcut, increment, expected in ((0.5, None, 0.5), (0.7, None, 0.3), (0.7, 1.0, 1.0)):
        connection = ConstantScaling(3, 6, shortcut=shortcut, increment=increment)

        def formula(x: Tensor, s: float = shortcut, i: float = expected) -> Tensor:
            for layer in layers:
                x = s * x + i * layer(x)
            return x

        assert count(connection) == 0
        check_against(connection, layers, formula)


@pytest.mark.parametrize("kind", [Highway, ExclusiveGating])
def test_exclusive_gating_and_highway(kind: type[Highway]) -> None:
    connection, layers = kind(3, 6, weight_std=0.5).double(), toy_layers(3)

    def formula(x: Tensor) -> Tensor:
        for index, layer in enumerate(layers):
            t = gate(connection, index, x)
            x = (1 - t) * x + t * layer(x)
        return x

    assert count(connection) == 3 * (6**2 + 6)
    check_against(connection, layers, formula)


def test_shortcut_gating() -> None:
    connection, layers = ShortcutGating(3, 6, weight_std=0.5).double(), toy_layers(3)

    def formula(x: Tensor) -> Tensor:
        for index, layer in enumerate(layers):
            x = (1 - gate(connection, index, x)) * x + layer(x)
        return x

    assert count(connection) == 3 * (6**2 + 6)
    check_against(connection, layers, formula)


def test_linear_shortcut_is_a_1x1_convolution() -> None:
    connection, layers = LinearShortcut(3, 6).double(), toy_layers(3)

    def formula(x: Tensor) -> Tensor:
        for index, layer in enumerate(layers):
            kernel = connection.weight[index][:, :, None]
            x = F.conv1d(x.mT, kernel).mT + layer(x)
        return x

    assert count(connection) == 3 * 6**2
    check_against(connection, layers, formula)


@pytest.mark.parametrize(("init", "variance"), [("he", 2.0), ("xavier", 1.0)])
def test_linear_shortcut_starts_with_the_stated_variance(init: str, variance: float) -> None:
    weight = LinearShortcut(4, 256, init=init).weight  # type: ignore[arg-type]
    assert weight.var().item() == pytest.approx(variance / 256, rel=0.02)


def test_dropout_shortcut_drops_the_shortcut_alone() -> None:
    connection = DropoutShortcut(1, 1000, p=0.5)
    x = torch.ones(4, 1000)
    kept = connection(x, [lambda x: torch.zeros_like(x)])
    assert set(kept.unique().tolist()) == {0.0, 2.0}  # inverted dropout: kept elements are doubled
    assert kept.mean().item() == pytest.approx(1.0, abs=0.1)
    assert torch.equal(connection.eval()(x, [torch.zeros_like]), x)


@pytest.mark.parametrize("kind", [Highway, ExclusiveGating])
def test_a_closed_gate_copies(kind: type[Highway]) -> None:
    """With b far below zero a highway network is the identity map, not the plain network."""
    connection = kind(3, 6, bias=-60.0).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(connection(x, toy_layers(3)), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("constant_scaling", 0),
        ("exclusive_gating", 2),
        ("highway", 2),
        ("shortcut_gating", 1),
        ("linear_shortcut", 0),
        ("dropout_shortcut", 1),  # on a CPU the mask has the type of x
    ],
)
def test_kept_for_backward(name: str, more: float, tiny: Build) -> None:
    plain = saved_units(tiny("residual=plain"))
    assert saved_units(tiny(f"residual={name}")) == pytest.approx(plain + 4 * more, abs=0.6)
