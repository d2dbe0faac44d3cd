"""Gemma 3n's LAuReL against its formula and against transformers' block."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from residual_lab.models import Decoder
from residual_lab.residuals.laurel_gemma3n import LaurelGemma3n
from tests.residuals.conftest import saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


@pytest.mark.parametrize("every", [1, 2])
def test_formula(every: int) -> None:
    connection, layers = LaurelGemma3n(4, 6, rank=2, every=every), toy_layers(4)

    def norm(x: Tensor, scale: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * scale

    def formula(x: Tensor) -> Tensor:
        for index, layer in enumerate(layers):
            n = norm(x, connection.norm_in[index])
            f = norm(layer(n), connection.norm_post[index])
            if index % every:
                x = x + f
                continue
            i = index // every
            low_rank = (n @ connection.left[i]) @ connection.right[i]
            laurel = n + norm(low_rank, connection.norm_laurel[i])
            x = (x + f + laurel) / 2**0.5
        return x

    beside = 4 // every
    assert count(connection) == 4 * 2 * 6 + beside * (2 * 2 * 6 + 6)
    check_against(connection, layers, formula)


def test_against_transformers() -> None:
    """One layer whose increment is zero: y = (x + block(n)) / √2."""
    modeling = pytest.importorskip("transformers.models.gemma3n.modeling_gemma3n")
    config = SimpleNamespace(hidden_size=6, laurel_rank=2, rms_norm_eps=1e-6)
    block = modeling.Gemma3nTextLaurelBlock(config)
    connection = LaurelGemma3n(1, 6, rank=2)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in connection.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
        block.linear_left.weight.copy_(connection.left[0].T)
        block.linear_right.weight.copy_(connection.right[0].T)
        block.post_laurel_norm.weight.copy_(connection.norm_laurel[0])
    norm = modeling.Gemma3nRMSNorm(6, eps=1e-6)
    with torch.no_grad():
        norm.weight.copy_(connection.norm_in[0])
    x = torch.randn(2, 5, 6, generator=generator)
    expected = (x + block(norm(x))) / 2**0.5
    torch.testing.assert_close(connection(x, [torch.zeros_like]), expected, rtol=1e-5, atol=1e-6)


def test_parameters_beside_each_attention(tiny: Build) -> None:
    """2rD + D, and two norms for each attention and MLP where plain has one."""
    model, plain = tiny("residual=laurel_gemma3n", "residual.rank=3"), tiny("residual=plain")
    more = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == 4 * (2 * 3 * 24 + 24) + 8 * 24


def test_the_layers_have_no_norms_of_their_own(tiny: Build) -> None:
    model = tiny("residual=laurel_gemma3n")
    names = [key for key, _ in model.named_parameters() if "norm" in key]
    assert all(key.startswith(("connection.", "norm.")) for key in names)


def test_kept_for_backward(tiny: Build) -> None:
    model = tiny("residual=laurel_gemma3n", "residual.rank=1")
    plain = saved_units(tiny("residual=plain", "residual.granularity=branch"))
    assert saved_units(model) <= plain + 8 * 3 + 4 * 2 + 1
