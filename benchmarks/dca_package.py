"""DeepCrossAttention of the package ``deep-cross-attention`` against ours, in the same process.

    python benchmarks/dca_package.py [layers=N] [width=N] [batch=N] [rounds=N] [threads=N]

One model of the package, once as it is and once with its own attentions and MLPs carried by our
connection, with the same weights: the outputs are checked to be equal first. Timed are forward
and backward; bytes kept for backward are counted. The package is given what the paper has and it
has not: no norm before w. Every entry is read (the package has no sum of the middle).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from residual_lab.cli import in_one_line
from residual_lab.costs.arguments import Arguments
from residual_lab.costs.timing import interleaved, ratio
from residual_lab.errors import LabError
from residual_lab.residuals.deepcrossattention import DCA
from residual_lab.residuals.depth_schedule import Sum

DEFAULTS = {"layers": 24, "width": 256, "batch": 1, "sequence": 256, "rounds": 10, "threads": 1}


def package_model(layers: int, width: int, heads: int) -> Any:
    """Return the package's model with the paper's GRN and moved weights; it reads all outputs."""
    from deep_cross_attention.dca_gpt import DCAGPT

    model = DCAGPT(31, width, layers, layers, dim_head=width // heads, heads=heads)
    with torch.no_grad():
        for grn in grns_of(model):
            grn.to_aggregate[0] = nn.Identity()  # its norm
            grn.bias += 0.1 * torch.randn_like(grn.bias)
    return model


def grns_of(model: Any) -> list[Any]:
    return [*(block.qkv_grn for block in model.dca_blocks), model.final_grn]


def connection_like(model: Any) -> DCA:
    """Return our connection with the weights of the package's GRNs."""
    width = model.token_emb.embedding_dim
    connection = DCA(len(model.dca_blocks), width, dynamic_weights="per_grn")
    connection.to(model.token_emb.weight.dtype)
    assert connection.w is not None
    with torch.no_grad():
        for step, grn in enumerate(grns_of(model)):
            for output in range(grn.num_outputs):
                number = connection.schedule.numbers[Sum(step, output)]
                connection.w[number] = grn.to_aggregate[1].weight[output]
                for source in range(step + 1):
                    place = connection.schedule.index(source, step, output)
                    connection.b[place] = grn.bias[output, source]
    return connection


def layers_of(model: Any) -> list[Callable[..., Tensor]]:
    """Return the package's attentions and MLPs as layers that return their increments."""

    def layer_of(block: Any) -> Callable[..., Tensor]:
        def layer(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            a = block.attn(q, k, v)
            return a + block.ff(block.pre_ff_norm(x + a))

        return layer

    return [layer_of(block) for block in model.dca_blocks]


def kept_bytes(forward: Callable[[], Tensor], parameters: Sequence[Tensor]) -> int:
    """Return the bytes that a forward keeps for backward, parameters aside."""
    known = {p.untyped_storage().data_ptr() for p in parameters}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in known)


def whole_numbers(arguments: Sequence[str], defaults: Mapping[str, int]) -> dict[str, int]:
    """``KEY=N`` arguments over ``defaults``; LabError for another key, or for no number."""
    asked = Arguments.of(arguments, tuple(defaults))
    if asked.overrides:
        raise LabError(f"{asked.overrides[0]}: no such key (there are {', '.join(defaults)})")
    return {key: asked.whole_number(key, default) or default for key, default in defaults.items()}


def main(arguments: list[str]) -> int:
    asked = whole_numbers(arguments, DEFAULTS)
    torch.manual_seed(0)
    torch.set_num_threads(asked["threads"])
    model = package_model(asked["layers"], asked["width"], heads=4)
    connection, layers = connection_like(model), layers_of(model)
    tokens = torch.randint(31, (asked["batch"], asked["sequence"]))

    def ours() -> Tensor:
        return model.to_logits(model.norm(connection(model.token_emb(tokens), layers)))

    def theirs() -> Tensor:
        return model(tokens)

    torch.testing.assert_close(ours(), theirs(), rtol=1e-3, atol=1e-3)
    work = {
        "package": lambda: theirs().square().mean().backward(),
        "ours": lambda: ours().square().mean().backward(),
    }
    found = interleaved(work, asked["rounds"], now=process_time)
    known = [*model.parameters(), *connection.parameters()]
    kept = {"package": kept_bytes(theirs, known), "ours": kept_bytes(ours, known)}
    for name, seconds in found.items():
        middle = sorted(seconds)[len(seconds) // 2]
        print(f"{name:8s} {middle * 1e3:9.1f} ms CPU, {kept[name] / 2**20:9.1f} MiB for backward")
    result = ratio(found["package"], found["ours"])
    print(f"package / ours {result.median:.2f} [{result.low:.2f}, {result.high:.2f}]")
    return 0


if __name__ == "__main__":
    sys.exit(in_one_line(main, sys.argv[1:]))
