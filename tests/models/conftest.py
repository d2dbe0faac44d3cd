"""Tokens for the tests of models."""

import pytest
import torch
from torch import Tensor


@pytest.fixture(scope="session")
def tokens_BT() -> Tensor:
    """Tokens of the tiny vocabulary, (2, 9)."""
    return torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(6))
