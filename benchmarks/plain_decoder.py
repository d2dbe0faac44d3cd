"""Our plain decoder against a minimal one, written as in nanoGPT, in the same process.

    python benchmarks/plain_decoder.py [batch=N] [rounds=N] [threads=N] [clock=cpu] [KEY=VALUE...]

Both have the same shape and the same weights, so the same loss, which is checked first; both
train with the same optimizer. Ours has what experiments need (connections, caches, a loss that
never holds all logits) and must be no slower.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.reference import against_references
from residual_lab.cli import in_one_line
from residual_lab.config.models import DecoderConfig
from residual_lab.costs.bench import Subject

SHAPE = (
    "model=nanodo_157m",
    "model.layers=12",
    "model.width=256",
    "model.mlp_width=1024",
    "model.heads=4",
    "model.vocabulary=2048",
    "hardware=cpu",
)


class Block(nn.Module):
    """Causal self-attention and an MLP, each with its norm and its addition."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.mlp_width is not None
        self.heads = config.heads
        self.norm_1 = nn.LayerNorm(config.width, bias=False)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)
        self.norm_2 = nn.LayerNorm(config.width, bias=False)
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = self.qkv(self.norm_1(x_BTD)).split(D, dim=2)
        q, k, v = (y.view(B, T, self.heads, D // self.heads).transpose(1, 2) for y in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).contiguous().view(B, T, D))
        return x_BTD + self.down(F.gelu(self.up(self.norm_2(x_BTD))))


class Reference(nn.Module):
    """A GPT with learned positions and a tied head."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.max_sequence_length is not None
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.max_sequence_length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=False)

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTD = self.tokens(tokens_BT) + self.positions(places)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits = F.linear(self.norm(x_BTD), self.tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())


def with_weights_of(subject: Subject) -> Reference:
    """The reference with the weights of ours, which stand in the same order."""
    reference = Reference(subject.config.model)
    theirs = list(reference.parameters())
    with torch.no_grad():
        for mine, other in zip(subject.model.parameters(), theirs, strict=True):
            other.copy_(mine)
    return reference


def main(arguments: Sequence[str]) -> int:
    return against_references(
        lambda subject: {"reference": with_weights_of(subject)},
        {"ours": "plain"},
        {("ours", "reference"): 1.0},
        [*SHAPE, *arguments],
        batch=4,
        rounds=30,
    )


if __name__ == "__main__":
    sys.exit(in_one_line(main, sys.argv[1:]))
