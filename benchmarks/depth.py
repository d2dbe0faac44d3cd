"""What a training step costs against depth: 12, 24, 48 and 96 layers.

python benchmarks/depth.py [depths=12,24,48,96] [batch=N] [rounds=N] [threads=N] [clock=cpu]
                           [plot=FILE] [KEY=VALUE...]

Prints, for every connection and depth, the step time, its ratio to plain and the bound, and how
what it adds grows with depth: the exponent e of layersᵉ, of the bytes counted and of the time
measured. 1 is linear. The plot shows step times and what each adds (default depth.svg).
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from residual_lab.cli import in_one_line
from residual_lab.costs.arguments import Arguments, whole_number
from residual_lab.costs.bench import Bench, bench

NAMES = "plain,denseformer,denseformer_4x1,denseformer_4x5,dca_k,dca"
SHAPE = ("model.width=256", "hardware=cpu", f"residual={NAMES}")


def main(arguments: Sequence[str]) -> int:
    asked = Arguments.of([*SHAPE, *arguments], ("depths", "batch", "rounds", "clock", "plot"))
    batch = asked.whole_number("batch", 1)
    rounds = asked.whole_number("rounds", 10, least=2)
    assert batch is not None and rounds is not None
    texts = asked.options.get("depths", "12,24,48,96").split(",")
    depths = [whole_number("depths", text, 1) for text in texts]
    clock = asked.options.get("clock", "wall")
    found: dict[int, Bench] = {}
    for depth in depths:
        overrides = (*asked.overrides, f"model.layers={depth}")
        configurations = replace(asked, overrides=overrides).configurations(batch)
        found[depth] = bench(configurations, batch, rounds, ("training",), clock)
        report(depth, found[depth])
    for name in list(found[depths[0]].measurements)[1:]:
        added_bytes = [
            float(b.measurements[name].work.bytes - b.base.work.bytes) for b in found.values()
        ]
        print(
            f"{name}: what it adds grows as layers^{exponent(depths, added_bytes):.2f} in bytes, "
            f"layers^{exponent(depths, added_seconds(found, name)):.2f} in time"
        )
    draw(found, asked.options.get("plot", "depth.svg"))
    return 0


def report(depth: int, found: Bench) -> None:
    rates = found.rates
    print(
        f"{depth} layers; {found.device}; products {rates.flops_per_s / 1e9:.1f} GFLOP/s, "
        f"additions {rates.bytes_per_s / 1e9:.1f} GB/s"
    )
    for name, measured in found.measurements.items():
        result = found.ratio(name, "training")
        assert result is not None
        seconds = median(measured.seconds["training"])
        print(
            f"  {name:<18} {seconds * 1e3:9.1f} ms  {result.median:.3f} "
            f"[{result.low:.3f}, {result.high:.3f}]  bound {found.bound(name):.3f}",
            flush=True,
        )


def added_seconds(found: dict[int, Bench], name: str) -> list[float]:
    """Per depth, from the ratio within rounds."""
    added = []
    for one in found.values():
        result = one.ratio(name, "training")
        assert result is not None
        added.append((result.median - 1) * median(one.base.seconds["training"]))
    return added


def exponent(depths: Sequence[int], values: Sequence[float]) -> float:
    """The slope of log(value) over log(depth); NaN where a value is lost in noise."""
    if min(values) <= 0 or len(depths) < 2:
        return math.nan
    return float(np.polyfit(np.log(depths), np.log(values), 1)[0])


def draw(found: dict[int, Bench], path: str) -> None:
    figure = Figure(figsize=(7, 3), layout="constrained")
    steps, added = figure.subplots(1, 2)
    names = list(next(iter(found.values())).measurements)
    for number, name in enumerate(names):
        look: Any = {"marker": "os^DvPX*"[number % 8], "color": f"C{number % 10}"}
        times = [median(one.measurements[name].seconds["training"]) for one in found.values()]
        steps.plot(list(found), times, label=name, **look)
        if name != names[0]:
            added.plot(list(found), added_seconds(found, name), **look)
    steps.set(xlabel="layers", ylabel="training step [s]", xlim=0, ylim=0)
    added.set(xlabel="layers", ylabel="added to plain [s]", xlim=0)
    steps.legend(frameon=False, fontsize=7)
    figure.savefig(path)
    print(path)


if __name__ == "__main__":
    sys.exit(in_one_line(main, sys.argv[1:]))
