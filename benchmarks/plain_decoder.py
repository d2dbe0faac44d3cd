"""Our plain decoder against a minimal one, written as in nanoGPT, in the same process.

    python benchmarks/plain_decoder.py [batch=N] [rounds=N] [threads=N] [clock=cpu] [KEY=VALUE...]

Both have the same shape and the same weights, so the same loss, which is checked first; both
train with the same optimizer. Ours has what experiments need (connections, caches, a loss that
never holds all logits) and must be no slower.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.cli import in_one_line
from residual_lab.config.models import DecoderConfig
from residual_lab.config.schema import Config
from residual_lab.costs.arguments import Arguments
from residual_lab.costs.bench import CLOCKS, Subject
from residual_lab.costs.bound import Rates, probes, work_of_step
from residual_lab.costs.step import TrainingStep
from residual_lab.costs.timing import interleaved, ratio
from residual_lab.measure.environment import describe_devices
from residual_lab.training.hardware import resolve_hardware, set_threads
from residual_lab.training.optimizer import build_optimizer

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


def training_steps(config: Config, batch: int) -> dict[str, Callable[[], object]]:
    """The training step of each. Raises SystemExit where their losses differ."""
    subject = Subject(config, batch, torch.device("cpu"))
    reference = with_weights_of(subject)
    inputs, targets = subject.batch[:, :-1], subject.batch[:, 1:]
    losses = [model.loss(inputs, targets).item() for model in (subject.model, reference)]
    if abs(losses[0] - losses[1]) > 1e-4 * losses[1]:
        raise SystemExit(f"not the same model: losses {losses[0]} and {losses[1]}")
    step = TrainingStep(
        reference,  # type: ignore[arg-type]
        build_optimizer(reference, config.optim, fused=True),
        precision=config.hardware.precision,
        clip_norm=config.optim.clip_norm,
    )
    return {"reference": lambda: step(subject.batch), "ours": subject.work()["training"]}


def main(arguments: list[str]) -> int:
    asked = Arguments.of([*SHAPE, *arguments], ("batch", "rounds", "clock"))
    batch, rounds = asked.whole_number("batch", 4), asked.whole_number("rounds", 30)
    assert batch is not None and rounds is not None
    (config,) = (resolve_hardware(c) for c in asked.configurations(batch).values())
    set_threads(config.hardware)
    clock = CLOCKS[asked.options.get("clock", "wall")]
    beside, done = probes(config, batch, torch.device("cpu"))
    found = interleaved({**training_steps(config, batch), **beside}, rounds, now=clock)
    times = {name: sorted(seconds)[rounds // 2] for name, seconds in found.items()}
    result = ratio(found["ours"], found["reference"])
    work = work_of_step(config, batch)
    rates = Rates(done.flops / times["products"], done.bytes / times["additions"])
    print(f"{describe_devices(torch.device('cpu'), 1)}; {batch} sequences; {rounds} rounds")
    print(f"reference  {times['reference'] * 1e3:9.1f} ms")
    print(f"ours       {times['ours'] * 1e3:9.1f} ms")
    print(f"ratio      {result.median:9.3f}  [{result.low:.3f}, {result.high:.3f}]")
    print(
        f"bound      {rates.seconds(work) * 1e3:9.1f} ms: {work.flops / 1e9:.1f} GFLOP at "
        f"{rates.flops_per_s / 1e9:.1f} GFLOP/s and {work.bytes / 1e9:.2f} GB at "
        f"{rates.bytes_per_s / 1e9:.1f} GB/s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(in_one_line(main, sys.argv[1:]))
