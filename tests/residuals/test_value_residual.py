"""Value residuals against a decoder whose attentions are written out."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from residual_lab.models import Decoder
from tests.residuals.conftest import saved_units

Build = Callable[..., Decoder]


def reference(model: Decoder, tokens: Tensor, mix: list[tuple[Tensor | float, Tensor | float]]):
    """Logits with every attention's values mixed by hand: no rotary, one head at a time."""
    x = model.embedding(tokens) + model.positions.weight[: tokens.shape[1]]
    first = None
    for layer, (one, own) in zip(model.layers, mix, strict=True):
        attention = layer.attention
        q, k, v = attention.qkv(attention.norm(x)).chunk(3, -1)
        first = v if first is None else first
        v = one * first + own * v
        size = q.shape[-1] // attention.heads
        heads = []
        for part in (slice(i, i + size) for i in range(0, q.shape[-1], size)):
            scores = q[..., part] @ k[..., part].mT / size**0.5
            mask = torch.ones_like(scores, dtype=torch.bool).tril()
            heads.append(scores.masked_fill(~mask, -torch.inf).softmax(-1) @ v[..., part])
        x = x + (a := attention.out(torch.cat(heads, -1)))
        x = x + layer.mlp(x)
        assert a.shape == x.shape
    return model.norm(x) @ model.head_weight.T


@pytest.mark.parametrize("granularity", ["layer", "branch"])
@pytest.mark.parametrize(("first", "own"), [(0.5, 0.5), (1.0, 0.0), (0.3, 0.9)])
def test_formula(
    granularity: str, first: float, own: float, tiny: Build, tokens_BT: Tensor
) -> None:
    model = tiny(
        "residual=value_residual",
        f"residual.granularity={granularity}",
        f"residual.first={first}",
        f"residual.own={own}",
        "model.positions=learned",
        "model.max_sequence_length=9",
    )
    mix: list[tuple[Tensor | float, Tensor | float]] = [(0.0, 1.0), *[(first, own)] * 3]
    torch.testing.assert_close(model(tokens_BT), reference(model, tokens_BT, mix))


def test_learned_weights(tiny: Build, tokens_BT: Tensor) -> None:
    """They start at the given ones, and their gradients are the reference's."""
    model = tiny(
        "residual=value_residual",
        "residual.learn=true",
        "model.positions=learned",
        "model.max_sequence_length=9",
    )
    weights = model.connection.weights
    assert weights.shape == (3, 2) and (weights == 0.5).all()  # 2 (L − 1)
    with torch.no_grad():
        weights += torch.linspace(-0.5, 0.5, 6).view(3, 2)
    mix = [(0.0, 1.0), *((w[0], w[1]) for w in weights)]
    found, expected = model(tokens_BT), reference(model, tokens_BT, mix)
    torch.testing.assert_close(found, expected)
    (mine,), (theirs,) = (torch.autograd.grad(y.square().sum(), weights) for y in (found, expected))
    torch.testing.assert_close(mine, theirs)


def test_learned_weights_under_checkpointed_layers(tiny: Build, tokens_BT: Tensor) -> None:
    """The first layer runs again in backward; V₁ stays what it was."""
    gradients = []
    for checkpoint in ("false", "true"):
        model = tiny(
            "residual=value_residual",
            "residual.learn=true",
            f"hardware.checkpoint_layers={checkpoint}",
        )
        model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
        gradients.append([p.grad for p in model.parameters()])
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("learn", "more"), [("false", 0), ("true", 3)])
def test_kept_for_backward(learn: str, more: int, tiny: Build) -> None:
    """Fixed weights keep nothing; learned ones the q, k, v of each later attention, V in them."""
    plain = saved_units(tiny("residual=plain"))
    found = saved_units(tiny("residual=value_residual", f"residual.learn={learn}"))
    assert found <= plain + 3 * more + 1
