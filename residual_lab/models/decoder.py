"""A decoder-only transformer whose residual connection is a part, not a habit.

Shapes: B batch, T time, D width, V vocabulary, H heads, K head width.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.config.models import DecoderConfig, TransformerConfig
from residual_lab.models.attention import (
    Attention,
    Context,
    KeyValueCache,
    build_norm,
    rotary_angles,
    sinusoids,
)
from residual_lab.models.loss import linear_cross_entropy
from residual_lab.models.mlp import MLP
from residual_lab.models.model import Model
from residual_lab.models.recompute import recompute
from residual_lab.residuals.connection import EditValues


class TransformerLayer(nn.Module):
    """Attention and MLP, each with its norm; returns the increment of both.

    a = attention(q, k, v);  f = a + mlp(x + a)
    """

    def __init__(self, config: TransformerConfig, *, separate_inputs: bool, pre_norm: bool) -> None:
        super().__init__()
        self.attention = Attention(config, separate_inputs=separate_inputs, pre_norm=pre_norm)
        self.mlp = MLP(config, pre_norm=pre_norm)

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
        """Read ``q``, ``k``, ``v``, by default ``x``; never add ``x`` to the result."""
        increment = self.attention(x_BTD, q, k, v, context=context, edit_values=edit_values)
        return increment + self.mlp(x_BTD + increment)


class Decoder(Model):
    """Token ids (B, T) to logits (B, T, V).

    ``connection`` carries the stream through the layers or, with ``granularity="branch"``,
    through their attentions and MLPs.
    """

    def __init__(
        self,
        config: DecoderConfig,
        granularity: str,
        *,
        separate_inputs: bool = False,
        pre_norm: bool = True,
        checkpoint_layers: bool = False,
    ) -> None:
        super().__init__()
        self.config, self.granularity = config, granularity
        self.checkpoint_layers = checkpoint_layers
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = (
            nn.Embedding(config.max_sequence_length or 0, config.width)
            if config.positions == "learned"
            else None
        )
        self.layers = nn.ModuleList(
            TransformerLayer(config, separate_inputs=separate_inputs, pre_norm=pre_norm)
            for _ in range(config.layers // config.share)
        )
        self.norm = build_norm(config)
        self.head = (
            None if config.tied_head else nn.Linear(config.width, config.vocabulary, bias=False)
        )
        self.head_bias = nn.Parameter(torch.zeros(config.vocabulary)) if config.head_bias else None

    @property
    def units(self) -> list[nn.Module]:
        """The modules that the connection calls, each once: layers or branches, in order."""
        if self.granularity == "layer":
            return list(self.layers)
        return [branch for layer in self.layers for branch in layer.children()]

    @property
    def depth(self) -> int:
        """How many increments the connection carries."""
        return self.config.layers * (1 if self.granularity == "layer" else 2)

    def forward(
        self, tokens_BT: Tensor, caches: dict[nn.Module, KeyValueCache] | None = None
    ) -> Tensor:
        """Return logits; with ``caches`` (see :meth:`new_caches`) of the new tokens only."""
        return F.linear(self.hidden(tokens_BT, caches), self.head_weight, self.head_bias)

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token; the logits are never held whole."""
        hidden_ND = self.hidden(tokens_BT).flatten(0, 1)
        return linear_cross_entropy(
            hidden_ND, self.head_weight, targets_BT.flatten(), self.head_bias
        )

    def hidden(
        self, tokens_BT: Tensor, caches: dict[nn.Module, KeyValueCache] | None = None
    ) -> Tensor:
        """Return what the head reads, (B, T, D)."""
        start = next(iter(caches.values())).length if caches else 0
        positions_T = torch.arange(start, start + tokens_BT.shape[1], device=tokens_BT.device)
        context = Context(self._rotary(positions_T), caches)
        x_BTD = self._embed(tokens_BT, positions_T)
        return self.norm(self.connection(x_BTD, self._callables(context)))

    def new_caches(self) -> dict[nn.Module, KeyValueCache]:
        """Return empty caches for decoding; they fill as ``forward`` is called with them."""
        if self.config.share > 1:
            raise NotImplementedError("decoding with caches needs model.share=1")
        attentions = [module for module in self.modules() if isinstance(module, Attention)]
        return {attention: KeyValueCache() for attention in attentions}

    @property
    def head_weight(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    def _rotary(self, positions_T: Tensor) -> Tensor | None:
        if self.config.positions != "rotary":
            return None
        assert self.config.attention_width is not None
        return rotary_angles(positions_T, self.config.attention_width // self.config.heads)

    def _embed(self, tokens_BT: Tensor, positions_T: Tensor) -> Tensor:
        x_BTD = self.embedding(tokens_BT)
        if self.positions is not None:
            x_BTD = x_BTD + self.positions(positions_T)
        elif self.config.positions == "sinusoidal":
            x_BTD = x_BTD + sinusoids(positions_T, self.config.width).to(x_BTD.dtype)
        dropout = self.config.dropout
        return F.dropout(x_BTD, dropout, self.training) if dropout else x_BTD

    def _callables(self, context: Context) -> Sequence[partial[Tensor]]:
        """Return the units as the connection sees them, ``depth`` of them."""
        units = [partial(unit, context=context) for unit in self.units]
        if self.checkpoint_layers and torch.is_grad_enabled():
            units = [partial(recompute, unit) for unit in units]
        branches = 1 if self.granularity == "layer" else 2
        layers = [units[i : i + branches] for i in range(0, len(units), branches)]
        return [unit for layer in layers for _ in range(self.config.share) for unit in layer]
