"""What the tests of all connections share: a tiny float64 decoder and the list of names."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from residual_lab import build_model, compose
from residual_lab.config import Config, conf_directory
from residual_lab.models import Decoder, Model

TINY = (
    "model.layers=4",
    "model.width=24",
    "model.heads=2",
    "model.vocabulary=31",
    "data.vocabulary=31",
    "data.tokenizer=gpt2",  # a BPE trained on the corpus has 257 pieces at least
    "data.sequence_length=8",
)
NAMES = sorted(path.stem for path in (conf_directory() / "residual").glob("*.yaml"))
GRANULARITIES = ("layer", "branch")


# what a connection needs for four layers to be enough
TINY_OPTIONS = {"denseformer_4x5": ("residual.dilation=2", "residual.period=3")}


@cache
def configuration(*overrides: str) -> Config:
    """Compose a tiny configuration, once."""
    names = [override.removeprefix("residual=") for override in overrides]
    extra = [option for name in names for option in TINY_OPTIONS.get(name, ())]
    return compose([*TINY, *extra, *overrides])


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Decoder]:
    """Build a tiny decoder in float64 from further overrides."""

    def build(*overrides: str) -> Decoder:
        return build_model(configuration(*overrides)).double()

    return build


@pytest.fixture(scope="session")
def tokens_BT() -> Tensor:
    """Tokens of the tiny vocabulary, (2, 9)."""
    return torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))


def types_read_by(model: Model) -> set[torch.dtype]:
    """Of what the layers of ``model`` will have read; it fills with each forward pass."""
    found: set[torch.dtype] = set()
    for unit in model.units:
        unit.register_forward_pre_hook(
            lambda _, inputs: found.update(x.dtype for x in inputs if x is not None)
        )
    return found


def jiggle(model: Decoder, scale: float = 0.3) -> Decoder:
    """Move every parameter of the connection away from where it started, in place."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.connection.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(scale * noise)
    return model


def saved_units(model: Decoder) -> float:
    """Count what one training forward keeps for backward, in activations (B, T, D).

    Every storage counts once, parameters do not count.
    """
    tokens_BT = torch.randint(31, (16, 33), generator=torch.Generator().manual_seed(2))
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in known:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:])
    loss.backward()
    bytes_kept = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    return bytes_kept / (16 * 32 * model.config.width * 8)
