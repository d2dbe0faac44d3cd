"""Hyper-connections of the package ``hyper-connections`` against ours, in the same process.

    python benchmarks/hyper_connections_package.py [layers=N] [width=N] [n=N] [batch=N] [rounds=N]

The branches are the attentions and MLPs of one of our decoders, once carried by the package's
modules and once by our connection with the same weights; the outputs are checked to be equal
first. Timed are forward and backward; bytes kept for backward are counted. The package has no
static form, so its dynamic part is there in both of its rows.
"""

import sys
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.dca_package import kept_bytes, whole_numbers
from residual_lab import build_model, compose
from residual_lab.cli import in_one_line
from residual_lab.costs.timing import interleaved, ratio
from residual_lab.models.attention import Context
from residual_lab.residuals.hyper_connections import HyperConnections

DEFAULTS = {
    "layers": 24,
    "width": 256,
    "n": 4,
    "batch": 1,
    "sequence": 256,
    "rounds": 10,
    "threads": 1,
}


def package_like(connection: HyperConnections) -> tuple[list[Any], Any, Any]:
    """Return the package's modules, one a branch, with our weights, and its expand and reduce."""
    from hyper_connections import get_init_and_expand_reduce_stream_functions

    init, expand, reduce = get_init_and_expand_reduce_stream_functions(connection.n, disable=False)
    modules = [init(dim=connection.width, layer_index=k) for k in range(connection.depth)]
    with torch.no_grad():
        for k, module in enumerate(modules):
            module.static_alpha.copy_(torch.cat([connection.A_m[k][:, None], connection.A_r[k]], 1))
            module.static_beta.copy_(connection.B[k])
            module.dynamic_alpha_fn.copy_(connection.W[k, :, :-1])
            module.dynamic_beta_fn.copy_(connection.W[k, :, -1])
    return modules, expand, reduce


def main(arguments: list[str]) -> int:
    asked = whole_numbers(arguments, DEFAULTS)
    torch.manual_seed(0)
    torch.set_num_threads(asked["threads"])
    shape = (f"model.layers={asked['layers']}", f"model.width={asked['width']}")
    decoder = build_model(compose([*shape, "residual.granularity=branch"]))
    context = Context(decoder._rotary(torch.arange(asked["sequence"])))
    layers = [partial(unit, context=context) for unit in decoder.units]
    dynamic = HyperConnections(len(layers), asked["width"], n=asked["n"])
    static = HyperConnections(len(layers), asked["width"], n=asked["n"], dynamic=False)
    with torch.no_grad():
        dynamic.W.normal_(std=0.05)
        for parameter in (dynamic.A_m, dynamic.A_r, dynamic.B):
            parameter += 0.1 * torch.randn_like(parameter)
    modules, expand, reduce = package_like(dynamic)
    x = torch.randn(asked["batch"], asked["sequence"], asked["width"], requires_grad=True)

    def theirs() -> Tensor:
        streams = expand(x)
        for module, layer in zip(modules, layers, strict=True):
            read, write = module(streams)
            streams = write(layer(read))
        result: Tensor = reduce(streams)
        return result

    torch.testing.assert_close(dynamic(x, layers), theirs(), rtol=1e-3, atol=1e-3)
    forwards = {
        "package": theirs,
        "ours": lambda: dynamic(x, layers),
        "ours, static": lambda: static(x, layers),
    }
    work = {key: partial(_step, forward) for key, forward in forwards.items()}
    found = interleaved(work, asked["rounds"], now=process_time)
    known = [
        p for part in (decoder, dynamic, static, nn.ModuleList(modules)) for p in part.parameters()
    ]
    for name, seconds in found.items():
        middle = sorted(seconds)[len(seconds) // 2]
        kept = kept_bytes(forwards[name], known) / 2**20
        print(f"{name:12s} {middle * 1e3:9.1f} ms CPU, {kept:9.1f} MiB for backward")
    for name in ("ours", "ours, static"):
        result = ratio(found["package"], found[name])
        print(f"package / {name} {result.median:.2f} [{result.low:.2f}, {result.high:.2f}]")
    return 0


def _step(forward: Any) -> None:
    forward().square().mean().backward()


if __name__ == "__main__":
    sys.exit(in_one_line(main, sys.argv[1:]))
