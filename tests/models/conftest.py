"""Tokens and parameter counts for the tests of models."""

import pytest
import torch
from torch import Tensor

from residual_lab import build_model, compose


@pytest.fixture(scope="session")
def tokens_BT() -> Tensor:
    """Tokens of the tiny vocabulary, (2, 9)."""
    return torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(6))


def count(*overrides: str) -> int:
    """Parameters of a configuration's model, without their memory."""
    with torch.device("meta"):
        model = build_model(compose(overrides))
    return sum(parameter.numel() for parameter in model.parameters())
