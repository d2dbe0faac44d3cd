"""The decoder against a slow one written out in a page, and against published counts."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab import build_model, compose
from residual_lab.models import Decoder
from residual_lab.models.attention import rotary_angles, rotate, sinusoids
from residual_lab.models.loss import in_chunks, linear_cross_entropy
from tests.residuals.conftest import TINY

VARIANTS = (
    (),
    ("model.norm=layernorm", "model.norm_bias=true", "model.bias=true"),
    ("model.positions=learned", "model.max_sequence_length=9", "model.mlp=relu"),
    ("model.positions=sinusoidal", "model.tied_head=false", "model.head_bias=true"),
    ("model.mlp=swiglu", "model.mlp_width=20", "model.attention_width=12"),
    ("model.share=2", "model.init=xavier"),
)


def randomised(*overrides: str) -> Decoder:
    model = build_model(compose([*TINY, *overrides])).double()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.2 * noise)
    return model.eval()


def slow_norm(x: Tensor, norm: nn.Module, rms: bool) -> Tensor:
    mean = 0.0 if rms else x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt(variance + 1e-5) * norm.weight
    bias = getattr(norm, "bias", None)
    return y if bias is None else y + bias


def slow_logits(model: Decoder, tokens: Tensor) -> Tensor:
    """One sequence (T,) → (T, V), head by head and token by token."""
    config, rms = model.config, model.config.norm == "rmsnorm"
    x = model.embedding.weight[tokens]
    if model.positions is not None:
        x = x + model.positions.weight[: len(tokens)]
    elif config.positions == "sinusoidal":
        for t in range(len(tokens)):
            for i in range(0, config.width, 2):
                angle = t / 10_000 ** (i / config.width)
                x[t, i] += math.sin(angle)
                x[t, i + 1] += math.cos(angle)
    for depth in range(config.layers):
        layer = model.layers[depth // config.share]
        attention, mlp = layer.attention, layer.mlp
        q, k, v = attention.qkv(slow_norm(x, attention.norm, rms)).chunk(3, -1)
        size = q.shape[-1] // config.heads
        mixed = torch.zeros_like(q)
        for head in range(config.heads):
            part = slice(head * size, (head + 1) * size)
            for t in range(len(tokens)):
                scores = torch.stack(
                    [
                        slow_score(q[t, part], k[s, part], t, s, config.positions)
                        for s in range(t + 1)
                    ]
                )
                mixed[t, part] = torch.softmax(scores, 0) @ v[: t + 1, part]
        x = x + attention.out(mixed)
        hidden = mlp.up(slow_norm(x, mlp.norm, rms))
        if config.mlp == "swiglu":
            gate, value = hidden.chunk(2, -1)
            hidden = gate * torch.sigmoid(gate) * value
        elif config.mlp == "gelu":
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        else:
            hidden = hidden.clamp(min=0)
        x = x + mlp.down(hidden)
    logits = slow_norm(x, model.norm, rms) @ model.head_weight.T
    return logits if model.head_bias is None else logits + model.head_bias


def slow_score(q: Tensor, k: Tensor, t: int, s: int, positions: str) -> Tensor:
    """q·k/√K, each pair (i, i + K/2) turned as a complex number by its position's angle."""
    if positions == "rotary":
        half = len(q) // 2
        frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        turn = torch.polar(torch.ones_like(frequencies), (t - s) * frequencies)
        product = torch.complex(q[:half], q[half:]) * torch.complex(k[:half], k[half:]).conj()
        return (product * turn).real.sum() / math.sqrt(len(q))
    return q @ k / math.sqrt(len(q))


@pytest.mark.parametrize("overrides", VARIANTS)
def test_equals_the_slow_decoder(overrides: tuple[str, ...], tokens_BT: Tensor) -> None:
    model = randomised(*overrides)
    with torch.no_grad():
        found = model(tokens_BT)
        for row, tokens in zip(found, tokens_BT, strict=True):
            # angles are computed in float32, whatever the model's precision
            torch.testing.assert_close(row, slow_logits(model, tokens), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("overrides", VARIANTS)
def test_branches_compute_what_layers_do(overrides: tuple[str, ...], tokens_BT: Tensor) -> None:
    layer = randomised(*overrides)
    branch = randomised(*overrides, "residual.granularity=branch")
    torch.testing.assert_close(branch(tokens_BT), layer(tokens_BT), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("overrides", VARIANTS)
def test_the_loss_is_the_cross_entropy_of_the_logits(
    overrides: tuple[str, ...], tokens_BT: Tensor
) -> None:
    model = randomised(*overrides)
    inputs, targets = tokens_BT[:, :-1], tokens_BT[:, 1:]
    expected = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model.loss(inputs, targets), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("function", [linear_cross_entropy, in_chunks])
def test_loss_gradients(function: object) -> None:
    """Both ways to avoid whole logits give autograd's gradients; 2,500 tokens are 3 chunks."""
    assert callable(function)
    hidden = torch.randn(2500, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 5, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(11, (2500,))
    expected = F.cross_entropy(hidden @ weight.T + bias, targets)
    found = function(hidden, weight, targets, bias)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected, (hidden, weight, bias))
    for one, other in zip(torch.autograd.grad(found, (hidden, weight, bias)), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_training_never_holds_all_logits() -> None:
    """No tensor of (tokens × vocabulary) is made on the way to the gradients."""
    from torch.utils._python_dispatch import TorchDispatchMode

    biggest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal biggest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                biggest = max(biggest, out.numel())
            return out

    hidden = torch.randn(4096, 8, requires_grad=True)
    weight = torch.randn(512, 8, requires_grad=True)
    targets = torch.randint(512, (4096,))
    for function in (linear_cross_entropy, in_chunks):
        biggest = 0
        with Watch():
            function(hidden, weight, targets).backward()
        assert biggest < 4096 * 512


def test_rotation_depends_on_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    angles = rotary_angles(torch.arange(20), 8).double()

    def score(t: int, s: int) -> Tensor:
        return (rotate(q, angles[:, t : t + 1]) * rotate(k, angles[:, s : s + 1])).sum()

    torch.testing.assert_close(score(7, 3), score(17, 13), rtol=1e-5, atol=1e-6)
    assert not torch.isclose(score(7, 3), score(7, 4))


def test_sinusoids_start_with_zero_and_one() -> None:
    table = sinusoids(torch.arange(3), 6)
    torch.testing.assert_close(table[0], torch.tensor([0.0, 1, 0, 1, 0, 1]))
    torch.testing.assert_close(table[2, :2], torch.tensor([math.sin(2), math.cos(2)]))


def test_dropout_is_for_training_alone(tokens_BT: Tensor) -> None:
    model = randomised("model.dropout=0.5")
    assert torch.equal(model(tokens_BT), model(tokens_BT))
    model.train()
    assert not torch.equal(model(tokens_BT), model(tokens_BT))


def test_initial_scales() -> None:
    """gpt2: N(0, 0.02) with output maps /√(2·layers); xavier: variance 2/(fan in + fan out)."""
    wide = ("model.width=256", "model.vocabulary=512", "data.vocabulary=512", "model.layers=2")
    gpt2 = build_model(compose(["model=desk", *wide]))
    layer = gpt2.layers[0]
    assert gpt2.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert layer.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert layer.mlp.down.weight.std().item() == pytest.approx(0.02 / 2, rel=0.02)
    xavier = build_model(compose(["model=desk", *wide, "model.init=xavier"]))
    layer = xavier.layers[0]
    for weight in (*layer.attention.qkv.weight.chunk(3), layer.mlp.up.weight):
        expected = math.sqrt(2 / (weight.shape[0] + weight.shape[1]))
        assert weight.std().item() == pytest.approx(expected, rel=0.02)


def test_a_seed_of_zero_is_a_seed() -> None:
    """F15: seed 0 twice gives equal weights, seed 1 others."""
    zero, again, one = (build_model(compose([*TINY, f"seed={s}"])) for s in (0, 0, 1))
    assert torch.equal(zero.embedding.weight, again.embedding.weight)
    assert not torch.equal(zero.embedding.weight, one.embedding.weight)
