"""Activation checkpointing: forget what a function keeps, compute it once more in backward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recompute(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Return ``function(*inputs, **options)`` and keep only its inputs for backward."""
    first = next(value for value in inputs if isinstance(value, torch.Tensor))
    if first.device.type == "xla":  # torch looks for a module torch.xla, which does not exist
        from torch_xla.utils.checkpoint import checkpoint as xla_checkpoint

        return reentrant(xla_checkpoint, function, inputs, options)
    return checkpoint(function, *inputs, use_reentrant=False, **options)


def reentrant(
    recomputing: Callable[..., Any],
    function: Callable[..., Any],
    inputs: Sequence[Any],
    options: Mapping[str, Any],
) -> Any:
    """Return ``function(*inputs, **options)`` by a checkpoint that takes no options.

    Options become inputs, for only inputs get a gradient.
    """

    def by_position(*values: Any) -> Any:
        options_again = dict(zip(options, values[len(inputs) :], strict=True))
        return function(*values[: len(inputs)], **options_again)

    return recomputing(by_position, *inputs, *options.values(), use_reentrant=True)
