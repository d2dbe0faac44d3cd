"""The vision transformer: big_vision's positions, pooling and start, and no mask."""

import math

import torch

from residual_lab import build_model, compose
from residual_lab.models import ViT
from residual_lab.models.vit import positions

DESK = ("model=vit_desk", "data=digits", "optim=resnet", "hardware=cpu")


def desk(*overrides: str) -> ViT:
    model = build_model(compose([*DESK, *overrides]))
    assert isinstance(model, ViT)
    return model


def test_positions_are_sines_and_cosines_of_column_then_row() -> None:
    """One patch by hand: row 2, column 3 of 4 × 5, with frequencies 1, 10000^(-1/2), 10000^-1."""
    found = positions(4, 5, 12, torch.zeros(1))[2 * 5 + 3]
    frequencies = [1, 0.01, 0.0001]
    expected = [f(at * w) for at in (3, 2) for f in (math.sin, math.cos) for w in frequencies]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert positions(4, 5, 12, torch.zeros(1)).unique(dim=0).shape == (20, 12)


def test_every_patch_reads_every_other() -> None:
    """The decoder's attention without its mask: the first patch sees a change in the last."""
    model = desk("model.layers=1").double().eval()
    layer = model.layers[0]
    seen: list[torch.Tensor] = []
    layer.register_forward_hook(lambda *arguments: seen.append(arguments[2]))
    images = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    changed = images.clone()
    changed[..., 6:, 6:] += 1
    model(images), model(changed)
    assert (seen[0][0, 0] - seen[1][0, 0]).abs().max() > 1e-6


def test_the_forward_pass_is_that_of_torchs_own_encoder() -> None:
    """torch.nn.TransformerEncoderLayer with the same weights."""
    model = desk("model.layers=1", "model.rep_size=40").double().eval()
    layer, width = model.layers[0], 48
    reference = torch.nn.TransformerEncoderLayer(
        *(width, 4, 4 * width, 0.0),
        activation=lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        layer_norm_eps=1e-6,
        batch_first=True,
        norm_first=True,
        dtype=torch.float64,
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        names = {
            "self_attn.in_proj_weight": layer.attention.qkv.weight,
            "self_attn.in_proj_bias": layer.attention.qkv.bias,
            "self_attn.out_proj.weight": layer.attention.out.weight,
            "self_attn.out_proj.bias": layer.attention.out.bias,
            "linear1.weight": layer.mlp.up.weight,
            "linear1.bias": layer.mlp.up.bias,
            "linear2.weight": layer.mlp.down.weight,
            "linear2.bias": layer.mlp.down.bias,
            "norm1.weight": layer.attention.norm.weight,
            "norm1.bias": layer.attention.norm.bias,
            "norm2.weight": layer.mlp.norm.weight,
            "norm2.bias": layer.mlp.norm.bias,
        }
        reference.load_state_dict(names)
        images = torch.randn(3, 1, 8, 8, dtype=torch.float64)
        patches = torch.nn.functional.unfold(images, 2, stride=2).mT  # (B, T, pixels)
        x_BTD = patches @ model.patches.weight.flatten(1).T + model.patches.bias
        x_BTD = reference(x_BTD + positions(4, 4, width, x_BTD))
        pooled = torch.tanh(model.representation(model.norm(x_BTD).mean(1)))
        torch.testing.assert_close(model(images), model.head(pooled), rtol=1e-6, atol=1e-8)


def test_it_starts_without_an_opinion() -> None:
    """The head is zero, so the loss is that of a guess; other maps have their fan-in's spread."""
    model = desk("model.rep_size=48", "model.width=192", "model.heads=4")
    assert not model(torch.randn(2, 1, 8, 8)).any()
    assert abs(model.representation.weight.std().item() * 192**0.5 - 1) < 0.05
    bound = (6 / (192 + 192)) ** 0.5  # Xavier uniform
    values = model.layers[0].attention.qkv.weight[:192]
    assert bound * 0.99 < values.abs().max() <= bound
