"""What it is worth that a process keeps the memory that it frees (``prepare_processor``).

    python benchmarks/freed_memory.py [batch=N] [rounds=N] [steps=N] [KEY=VALUE...]

A setting of malloc cannot be taken back, so this cannot be done within one process: in each round
one process that keeps it and one with glibc's defaults do ``steps`` training steps of ResNet-50,
one after the other. Printed are step time and page faults of a step, medians over rounds.
"""

import resource
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.reference import CPU
from residual_lab.cli import in_one_line
from residual_lab.config.schema import Config
from residual_lab.costs.arguments import Arguments
from residual_lab.costs.bench import Subject
from residual_lab.costs.timing import ratio
from residual_lab.training import hardware

SHAPE = ("model=resnet50", "data=imagenet", "optim=resnet", "hardware=cpu", "residual=plain")


def measured(config: Config, batch: int, steps: int, kept: bool) -> tuple[float, float]:
    """Seconds and page faults of a step in this process, the medians of ``steps``."""
    if not kept:
        hardware._keep_freed_memory = lambda: None
    config = hardware.resolve_hardware(config)
    hardware.prepare_processor(config.hardware)
    step = Subject(config, batch, CPU).work()["training"]
    found = []
    for _ in range(steps + 2):
        faults, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, perf_counter()
        step()
        seconds = perf_counter() - start
        found.append((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults))
    seconds, faults = zip(*found[2:], strict=True)
    return median(seconds), median(faults)


def main(arguments: Sequence[str]) -> int:
    asked = Arguments.of([*SHAPE, *arguments], ("batch", "rounds", "steps"))
    batch, steps = asked.whole_number("batch", 8), asked.whole_number("steps", 8)
    rounds = asked.whole_number("rounds", 4, least=2)
    assert batch is not None and steps is not None and rounds is not None
    (config,) = asked.configurations(batch).values()
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(rounds):
        for kept in (True, False) if turn % 2 else (False, True):
            with get_context("spawn").Pool(1) as process:
                found[kept].append(process.apply(measured, (config, batch, steps, kept)))
    for kept, name in ((False, "given back"), (True, "kept")):
        seconds, faults = zip(*found[kept], strict=True)
        print(f"{name:12}{median(seconds) * 1e3:9.1f} ms{median(faults):12,.0f} page faults")
    result = ratio(*([seconds for seconds, _ in found[kept]] for kept in (True, False)))
    print(f"kept / given back: {result.median:.3f} [{result.low:.3f}, {result.high:.3f}]")
    return 0


if __name__ == "__main__":
    sys.exit(in_one_line(main, sys.argv[1:]))
