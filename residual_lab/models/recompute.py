"""Activation checkpointing: forget what a function keeps, compute it once more in backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recompute(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Return ``function(*inputs, **options)`` and keep only its inputs for backward."""
    first = next(value for value in inputs if isinstance(value, torch.Tensor))
    if first.device.type == "xla":  # torch looks for a module torch.xla, which does not exist
        from torch_xla.utils.checkpoint import checkpoint as xla_checkpoint

        return xla_checkpoint(function, *inputs, use_reentrant=True, **options)
    return checkpoint(function, *inputs, use_reentrant=False, **options)
