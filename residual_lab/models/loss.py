"""Cross-entropy of a linear head that never holds all logits at once."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from residual_lab.models.recompute import recompute

# Tokens whose logits exist at one time. What torch would choose on CPU, 16 for 512 tokens of width
# 256 and 8192 pieces, takes over three times as long, in products of so few rows.
CHUNK = 1024


def linear_cross_entropy(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy in nats of ``hidden @ weightᵀ + bias``, a scalar.

    torch has this since 2.13; before that, in 16-bit types and under the compiler, logits are
    computed in chunks and once more for backward. The meta device takes the plain expression,
    whose FLOPs torch can count.
    """
    if hidden_ND.device.type == "meta":
        return F.cross_entropy(F.linear(hidden_ND, weight_VD, bias_V), targets_N)
    if torch.is_autocast_enabled(hidden_ND.device.type):
        dtype = torch.get_autocast_dtype(hidden_ND.device.type)
        hidden_ND, weight_VD = hidden_ND.to(dtype), weight_VD.to(dtype)
        bias_V = bias_V.to(dtype) if bias_V is not None else None
    options: Any = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    # torch's returns the loss in the type of the logits: in bfloat16, 6.03 comes out as 6.
    halved = hidden_ND.dtype in (torch.bfloat16, torch.float16)
    if options is None or halved or torch.compiler.is_compiling():
        return in_chunks(hidden_ND, weight_VD, targets_N, bias_V)
    chunks = options(batch_chunk_size=CHUNK, chunking_method=None)
    return F.linear_cross_entropy(
        hidden_ND, weight_VD, targets_N, linear_bias=bias_V, options=chunks
    )


def in_chunks(
    hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, bias_V: Tensor | None = None
) -> Tensor:
    """Return the same mean, a chunk of tokens at a time."""
    total = sum(
        recompute(_chunk_sum, hidden, weight_VD, targets, bias_V)
        for hidden, targets in zip(hidden_ND.split(CHUNK), targets_N.split(CHUNK), strict=True)
    )
    assert isinstance(total, Tensor)
    return total / targets_N.numel()


def _chunk_sum(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> Tensor:
    logits = F.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, reduction="sum")
