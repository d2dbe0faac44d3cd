"""DenseNet, ELC-BERT and DWAtt against their formulas."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.models import Decoder
from residual_lab.models.attention import Context
from residual_lab.residuals.densenet import DenseNet, DenseNetSum
from residual_lab.residuals.dwatt import DepthWiseAttention
from residual_lab.residuals.elc_bert import ElcBert
from tests.residuals.conftest import saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


@pytest.mark.parametrize("init", ["fan_in", "identity"])
def test_densenet_concatenates(init: str) -> None:
    """torch.cat of all increments times one tall matrix per layer."""
    connection, layers = DenseNet(4, 6, init=init), toy_layers(4)  # type: ignore[arg-type]

    def formula(x: Tensor) -> Tensor:
        sources, start = [x], 0
        for index in range(5):
            tall = connection.weight[start : start + index + 1].flatten(0, 1)  # ((l + 1)D, D)
            start += index + 1
            h = torch.cat(sources, -1) @ tall
            if index < 4:
                sources.append(layers[index](h))
        return h

    assert count(connection) == 5 * 6 // 2 * 6**2
    check_against(connection, layers, formula)


def test_densenet_keeps_the_variance() -> None:
    """Each W_l is N(0, 1/((l + 1)D))."""
    connection = DenseNet(3, 256)
    for sources, weight in enumerate(connection.weight.split([1, 2, 3, 4]), 1):
        assert weight.var().item() == pytest.approx(1 / (sources * 256), rel=0.05)


@pytest.mark.parametrize("scale", ["mean", "sum"])
def test_densenet_sum(scale: str) -> None:
    connection, layers = DenseNetSum(4, 6, scale=scale), toy_layers(4)  # type: ignore[arg-type]

    def formula(x: Tensor) -> Tensor:
        states = [x]
        for layer in layers:
            total = sum(states)
            states.append(layer(states[-1]) + (total / len(states) if scale == "mean" else total))
        return states[-1]

    assert count(connection) == 0
    check_against(connection, layers, formula)


def test_sums_of_states_double() -> None:
    x = torch.ones(1, 6)
    assert torch.equal(DenseNetSum(5, 6, scale="sum")(x, [torch.zeros_like] * 5), 2**4 * x)
    assert torch.equal(DenseNetSum(5, 6)(x, [torch.zeros_like] * 5), x)


@pytest.mark.parametrize("variant", ["base", "zero", "normalized"])
@pytest.mark.parametrize("weighted_output", [False, True])
def test_elc_bert(variant: str, weighted_output: bool) -> None:
    connection = ElcBert(4, 6, variant=variant, weighted_output=weighted_output)  # type: ignore[arg-type]
    layers = toy_layers(4)

    def combine(a: Tensor, outputs: list[Tensor]) -> Tensor:
        weights = torch.exp(a) / torch.exp(a).sum()
        return sum(w * h for w, h in zip(weights, outputs, strict=True))

    def formula(x: Tensor) -> Tensor:
        outputs, start = [x], 0
        for index, layer in enumerate(layers):
            m = x
            if index:
                m = combine(connection.logits[start : start + index + 1], outputs)
                start += index + 1
            h = layer(0 * m, m, m, m) if variant == "base" else layer(m, m, m, m)
            if variant == "normalized":
                h = h - h.mean(-1, keepdim=True)
                h = h / torch.sqrt((h**2).mean(-1, keepdim=True) + 1e-5)
            outputs.append(h)
        return combine(connection.logits[start:], outputs) if weighted_output else outputs[-1]

    assert count(connection) == 4 * 5 // 2 - 1 + (5 if weighted_output else 0)
    check_against(connection, layers, formula)


def test_elc_bert_starts() -> None:
    assert ElcBert(3, 6).logits.tolist() == [0, 1, 0, 0, 1]
    assert ElcBert(3, 6, variant="zero", weighted_output=True).logits.tolist() == [0] * 9


@pytest.mark.parametrize("variant", ["base", "zero"])
def test_elc_bert_blocks(variant: str, tiny: Build, tokens_BT: Tensor) -> None:
    """What the blocks of a decoder do: attention + mlp(mix + attention), or without the mix."""
    model = tiny("residual=elc_bert", f"residual.variant={variant}", "model.layers=1")
    layer, x = model.layers[0], model.embedding(tokens_BT)
    context = Context(model._rotary(torch.arange(9)))
    u = layer.attention(x, context=context)
    h = u + layer.mlp(u if variant == "base" else x + u)
    torch.testing.assert_close(model.hidden(tokens_BT), model.norm(h))


def test_elc_bert_mlps_as_layers_read_the_combination(tiny: Build, tokens_BT: Tensor) -> None:
    """With x = 0 and attention and MLP as layers, no unit reads zeros."""
    model = tiny("residual=elc_bert", "residual.granularity=branch", "model.layers=1")
    layer, x = model.layers[0], model.embedding(tokens_BT)
    u = layer.attention(x, context=Context(model._rotary(torch.arange(9))))
    weights = torch.softmax(torch.tensor([0.0, 1.0], dtype=torch.float64), 0)
    h = layer.mlp(weights[0] * x + weights[1] * u)
    torch.testing.assert_close(model.hidden(tokens_BT), model.norm(h))


def test_dwatt() -> None:
    connection, layers = DepthWiseAttention(3, 6, positions=5), toy_layers(3)

    def bottleneck(index: int, z: Tensor) -> Tensor:
        hidden = F.gelu(z @ connection.down[index].T)
        normed = F.layer_norm(
            hidden, (3,), connection.inner_scale[index], connection.inner_bias[index]
        )
        return normed @ connection.up[index].T

    def formula(x: Tensor) -> Tensor:
        z = [x := x + layer(x) for layer in layers]
        y = z[-1] + bottleneck(3, z[-1])
        q = 1 + torch.where(y > 0, y, torch.exp(y) - 1)
        keys = [connection.key @ connection.positions[n] for n in range(3)]
        scores = torch.stack([(q * k).sum(-1) for k in keys], -1).softmax(-1)
        values = [
            F.layer_norm(bottleneck(n, z[n]), (6,), connection.scale[n], connection.bias[n])
            for n in range(3)
        ]
        return z[-1] + sum(scores[..., n, None] * values[n] for n in range(3))

    h = 3
    expected = 4 * (2 * h * 6 + 2 * h) + 2 * 3 * 6 + 5 * 6 + 5 * 3
    assert count(connection) == expected
    check_against(connection, layers, formula)


def test_dwatt_starts() -> None:
    connection = DepthWiseAttention(50, 240)
    assert 0 <= connection.positions.min() < 0.05 and 0.95 < connection.positions.max() <= 1
    leading = 51 * 240**2 + 24 * 240
    assert count(connection) == pytest.approx(leading, rel=0.02)


@pytest.mark.parametrize(
    ("name", "more"), [("densenet", 4), ("densenet_sum", 0), ("elc_bert", 4), ("dwatt", 4 * 5)]
)
def test_kept_for_backward(name: str, more: int, tiny: Build) -> None:
    model: nn.Module = tiny(f"residual={name}")
    plain = saved_units(tiny("residual=plain"))
    assert saved_units(model) <= plain + more + 3  # type: ignore[arg-type]
