"""Residual gates, ReZero, LayerScale and DeepNorm against their formulas."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from residual_lab import build_model
from residual_lab.models import Decoder
from residual_lab.residuals.deepnorm import DeepNorm
from residual_lab.residuals.scalars import LayerScale, ResidualGates, ReZero
from tests.residuals.conftest import configuration, saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


def test_residual_gates() -> None:
    """u = g·(f + x) + (1 − g)·x, the paper's general form, one gate shut."""
    connection, layers = ResidualGates(4, 6), toy_layers(4)
    with torch.no_grad():
        connection.k[2] = -5.0

    def formula(x: Tensor) -> Tensor:
        for k, layer in zip(connection.k, layers, strict=True):
            g = k.clamp(min=0)
            x = g * (layer(x) + x) + (1 - g) * x
        return x

    assert count(connection) == 4
    check_against(connection, layers, formula)


def test_residual_gates_learn_from_the_start(tiny: Build, tokens_BT: Tensor) -> None:
    model = tiny("residual=residual_gates")
    model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
    gradient = model.connection.k.grad  # type: ignore[union-attr]
    assert torch.equal(model.connection.k, torch.ones(4, 1, dtype=torch.float64))
    assert gradient is not None and (gradient != 0).all()


def test_a_connection_does_not_decay_unless_told() -> None:
    """Decay on the gates costs accuracy: 7.04 against 6.67 % in the paper's table."""
    assert configuration("residual=residual_gates").optim.connection_weight_decay == 0


@pytest.mark.parametrize(("share", "parameters"), [(1, 5), (2, 3), (5, 1)])
def test_rezero(share: int, parameters: int) -> None:
    connection, layers = ReZero(5, 6, share=share), toy_layers(5)

    def formula(x: Tensor) -> Tensor:
        for index, layer in enumerate(layers):
            x = x + connection.alpha[index // share] * layer(x)
        return x

    assert count(connection) == parameters
    assert not connection.alpha.any()
    check_against(connection, layers, formula)


def test_rezero_starts_as_the_identity_and_has_no_norms(tiny: Build, tokens_BT: Tensor) -> None:
    model = tiny("residual=rezero")
    x = model.embedding(tokens_BT)
    assert torch.equal(model.hidden(tokens_BT), model.norm(x))
    assert [key for key, _ in model.named_parameters() if "norm" in key] == ["norm.weight"]


@pytest.mark.parametrize(("depth", "start"), [(36, 0.1), (48, 1e-5), (72, 1e-6)])
def test_layerscale(depth: int, start: float) -> None:
    assert torch.equal(LayerScale(depth, 6).scale, torch.full((depth, 6), start))
    connection, layers = LayerScale(3, 6), toy_layers(3)

    def formula(x: Tensor) -> Tensor:
        for scale, layer in zip(connection.scale, layers, strict=True):
            x = x + layer(x) @ torch.diag(scale)
        return x

    assert count(connection) == 3 * 6
    check_against(connection, layers, formula)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_deepnorm(norm: str) -> None:
    connection, layers = DeepNorm(4, 6, norm=norm), toy_layers(4)  # type: ignore[arg-type]

    def formula(x: Tensor) -> Tensor:
        for index, layer in enumerate(layers):
            y = 4**0.25 * x + layer(x)  # 2N = 4
            if connection.bias is not None:
                y = y - y.mean(-1, keepdim=True)
            y = y / torch.sqrt((y**2).mean(-1, keepdim=True) + 1e-5) * connection.scale[index]
            x = y if connection.bias is None else y + connection.bias[index]
        return x

    assert count(connection) == 4 * 6 * (2 if norm == "layernorm" else 1)
    check_against(connection, layers, formula)


def test_deepnorm_scales_values_outputs_and_mlps_alone() -> None:
    """2 blocks are 4 increments: (8·2)^−¼ = ½, against the same seed's plain weights."""
    options = ("model.layers=2", "residual.granularity=branch")
    plain = build_model(configuration("residual=plain", *options)).layers[1]
    scaled = build_model(configuration("residual=deepnorm", *options)).layers[1]
    queries_keys, values = scaled.attention.qkv.weight.split([48, 24])
    expected_queries_keys, expected_values = plain.attention.qkv.weight.split([48, 24])
    assert torch.equal(queries_keys, expected_queries_keys)
    torch.testing.assert_close(values, expected_values / 2)
    for key in ("attention.out", "mlp.up", "mlp.down"):
        weight = scaled.get_submodule(key).weight
        torch.testing.assert_close(weight, plain.get_submodule(key).weight / 2)


def test_deepnorm_has_one_norm_for_each_increment(tiny: Build) -> None:
    model = tiny("residual=deepnorm", "residual.bias=false")
    plain = tiny("residual=plain")
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters())


@pytest.mark.parametrize(
    ("name", "more"), [("residual_gates", 1), ("rezero", 0), ("layerscale", 1), ("deepnorm", 0)]
)
def test_kept_for_backward(name: str, more: int, tiny: Build) -> None:
    """f for each learned factor; ReZero has no norm's output to keep instead."""
    model = tiny(f"residual={name}")
    plain = saved_units(tiny("residual=plain", f"residual.granularity={model.granularity}"))
    assert saved_units(model) <= plain + model.depth * more + 0.5
