"""Norms, positions and self-attention as one branch of a transformer's layer."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.config.models import TransformerConfig
from residual_lab.residuals.connection import EditValues


def build_norm(config: TransformerConfig) -> nn.Module:
    if config.norm == "rmsnorm":
        return nn.RMSNorm(config.width, eps=config.norm_epsilon)
    return nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=config.norm_bias)


def rotary_angles(positions_T: Tensor, head_width: int, base: float = 10_000.0) -> Tensor:
    """Return cos and sin of each position and frequency, stacked: (2, T, head_width)."""
    steps = torch.arange(0, head_width, 2, device=positions_T.device, dtype=torch.float32)
    frequencies = base ** (-steps / head_width)
    angles = positions_T.float()[:, None] * frequencies
    return torch.stack([angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)])


def rotate(x_BHTK: Tensor, angles: Tensor) -> Tensor:
    """Turn each pair (i, i + K/2) of a head's features by its position's angle."""
    cos, sin = angles.to(x_BHTK.dtype)
    first, second = x_BHTK.chunk(2, -1)
    return x_BHTK * cos + torch.cat([-second, first], -1) * sin


def sinusoids(positions_T: Tensor, width: int) -> Tensor:
    """Return the fixed position embedding (T, width) of Vaswani et al. 2017, section 3.5."""
    steps = torch.arange(0, width, 2, device=positions_T.device, dtype=torch.float32)
    angles = positions_T.float()[:, None] * torch.exp(steps * (-math.log(10_000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]


@dataclass
class KeyValueCache:
    """Keys and values of the tokens read so far, for decoding."""

    keys: Tensor | None = None  # (B, H, T, K)
    values: Tensor | None = None

    @property
    def length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys_BHTK: Tensor, values_BHTK: Tensor) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            keys_BHTK = torch.cat([self.keys, keys_BHTK], 2)
            values_BHTK = torch.cat([self.values, values_BHTK], 2)
        self.keys, self.values = keys_BHTK, values_BHTK
        return keys_BHTK, values_BHTK


@dataclass
class Context:
    """What all layers of one forward share."""

    rotary: Tensor | None = None  # see rotary_angles
    caches: dict[nn.Module, KeyValueCache] | None = None  # by attention module


class Attention(nn.Module):
    """Multi-head self-attention, causal in a decoder; returns its increment.

    ``pre_norm`` normalises the input; with ``separate_inputs`` queries, keys and values come
    from different mixtures and each has a norm of its own.
    """

    def __init__(self, config: TransformerConfig, *, separate_inputs: bool, pre_norm: bool) -> None:
        super().__init__()
        width, bias = config.attention_width, config.attention_bias
        assert width is not None and bias is not None
        self.heads, self.dropout, self.causal = config.heads, config.dropout, config.causal
        self.norm = build_norm(config) if pre_norm else nn.Identity()
        self.norm_k = build_norm(config) if pre_norm and separate_inputs else None
        self.norm_v = build_norm(config) if pre_norm and separate_inputs else None
        self.qkv = nn.Linear(config.width, 3 * width, bias=bias)
        self.out = nn.Linear(width, config.width, bias=bias)

    def forward(
        self,
        x_BTD: Tensor,
        q: Tensor | None = None,
        k: Tensor | None = None,
        v: Tensor | None = None,
        *,
        context: Context,
        edit_values: EditValues | None = None,
    ) -> Tensor:
        """Read ``q``, ``k``, ``v``, by default ``x``; of shape (batch, time, width)."""
        q, k, v = (x_BTD if y is None else y for y in (q, k, v))
        if q is k and k is v and self.norm_k is None:
            q, k, v = self.qkv(self.norm(q)).chunk(3, -1)
        else:
            q, k, v = self._project(q, k, v)
        if edit_values is not None:
            v = edit_values(v)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        mixed = self._attend(q, k, v, context)
        increment = self.out(mixed.transpose(1, 2).flatten(-2))
        return F.dropout(increment, self.dropout, self.training) if self.dropout else increment

    def _project(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        norms = (self.norm, self.norm_k or self.norm, self.norm_v or self.norm)
        weights = self.qkv.weight.chunk(3)
        biases = self.qkv.bias.chunk(3) if self.qkv.bias is not None else (None,) * 3
        q, k, v = (
            F.linear(norm(y), weight, bias)
            for norm, y, weight, bias in zip(norms, (q, k, v), weights, biases, strict=True)
        )
        return q, k, v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return (batch, heads, time, head width)."""
        if context.rotary is not None:
            q, k = rotate(q, context.rotary), rotate(k, context.rotary)
        new, old = q.shape[2], 0
        if context.caches is not None:
            cache = context.caches[self]
            old = cache.length
            k, v = cache.append(k, v)
        mask = None
        if old and new > 1:
            mask = torch.ones(new, old + new, dtype=torch.bool, device=q.device).tril(old)
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=self.causal and mask is None and new > 1,
            dropout_p=self.dropout if self.training else 0.0,
        )
