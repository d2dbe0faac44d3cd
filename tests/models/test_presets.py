"""The presets have the parameter counts that the papers print, and start as they should."""

import pytest
import torch

from residual_lab import build_model, compose
from tests.models.conftest import count


@pytest.mark.parametrize(
    ("overrides", "parameters"),
    [
        (("model=gpt2_124m",), 124_439_808),
        (("model=nanodo_157m",), 157_204_992),  # LAuReL, table 5: 157.20M
        (("model=nanodo_157m", "model.layers=28"), 179_231_232),  # 179.23M
        (("model=denseformer",), 378_446_592),  # DenseFormer, table 1: 378.45M
        (("model=denseformer", "model.layers=64"), 491_717_376),
        (("model=denseformer", "model.layers=72"), 548_352_768),
        (("model=denseformer", "model.layers=84"), 633_305_856),
        (("model=denseformer", "model.layers=90"), 675_782_400),
        (("model=flax_lm1b",), 49_653_040),  # DeepCrossAttention, tables 5 and 7: 49.65M
        (("model=llama_1b",), 1_176_832_000),  # OLMo-1B's 1,176,764,416 and its 33 norms of 2048
        (("model=llama_4b",), 3_950_062_080),
    ],
)
def test_exact_counts(overrides: tuple[str, ...], parameters: int) -> None:
    assert count(*overrides) == parameters


@pytest.mark.parametrize("millions", [75, 124, 179, 234, 449])
def test_counts_that_are_printed_in_millions(millions: int) -> None:
    """DeepCrossAttention, table 3."""
    assert round(count(f"model=dca_c4_{millions}m") / 1e6) == millions


@pytest.mark.parametrize(("init", "default"), [("gpt2", 0.02), ("xavier", 128**-0.5)])
def test_the_embedding_has_a_scale_of_its_own(init: str, default: float) -> None:
    small = ("model=desk", "model.layers=1", f"model.init={init}")
    model = build_model(compose(small))
    assert model.embedding.weight.std().item() == pytest.approx(default, rel=0.02)
    wider = build_model(compose([*small, "model.embedding_std=1.0"]))
    assert wider.embedding.weight.std().item() == pytest.approx(1.0, rel=0.02)
    assert torch.equal(wider.layers[0].mlp.up.weight, model.layers[0].mlp.up.weight)


def test_attention_may_be_without_biases_that_the_mlp_has() -> None:
    layer = build_model(compose(["model.bias=true", "model.attention_bias=false"])).layers[0]
    assert layer.attention.qkv.bias is None and layer.attention.out.bias is None
    assert layer.mlp.up.bias is not None and layer.mlp.down.bias is not None
