"""Training steps of our models beside those of references, in one process."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import torch
from torch import nn

from benchmarks.limits import judged
from residual_lab.config.schema import Config
from residual_lab.costs.arguments import Arguments
from residual_lab.costs.bench import CLOCKS, Subject
from residual_lab.costs.bound import Rates, probes, work_of_step
from residual_lab.costs.step import TrainingStep
from residual_lab.costs.timing import interleaved, ratio
from residual_lab.data.batches import inputs_and_targets
from residual_lab.measure.environment import describe_devices
from residual_lab.training.hardware import prepare_processor, resolve_hardware
from residual_lab.training.optimizer import build_optimizer

CPU = torch.device("cpu")
Limits = Mapping[tuple[str, str], float]  # of the ratio of two steps


def against_references(
    references_for: Callable[[Subject], Mapping[str, nn.Module]],
    ours: Mapping[str, str],
    limits: Limits,
    arguments: Sequence[str],
    batch: int,
    rounds: int,
) -> int:
    """Time the steps of ``ours``, a residual by name, and of the references; print the ratios.

    ``references_for`` makes from our first what has the same weights and so the same ``loss``, by
    name, which is checked; it trains with the same optimizer. ``arguments`` are options (batch=,
    rounds=, clock=) and overrides. Raises SystemExit where losses differ. Returns 1 where a limit
    is exceeded, otherwise 0.
    """
    asked = Arguments.of(arguments, ("batch", "rounds", "clock"))
    size, count = asked.whole_number("batch", batch), asked.whole_number("rounds", rounds, least=2)
    assert size is not None and count is not None
    configs = {name: _resolved(asked, residual, size) for name, residual in ours.items()}
    first = next(iter(configs.values()))
    prepare_processor(first.hardware)
    subjects = {name: Subject(config, size, CPU) for name, config in configs.items()}
    steps: dict[str, Callable[[], object]]
    steps = _reference_steps(references_for, next(iter(subjects.values())))
    steps |= {name: subject.work()["training"] for name, subject in subjects.items()}
    beside, done = probes(first, size, CPU)
    clock = CLOCKS[asked.options.get("clock", "wall")]
    found = interleaved({**steps, **beside}, count, now=clock)
    print(f"{describe_devices(CPU, 1)}; a batch of {size}; {count} rounds")
    for name in steps:
        print(f"{name:24}{median(found[name]) * 1e3:9.1f} ms")
    rates = Rates(done.flops / median(found["products"]), done.bytes / median(found["additions"]))
    for name, config in configs.items():
        _print_bound(name, config, size, rates)
    return max(
        judged(" / ".join(pair), ratio(found[pair[0]], found[pair[1]]), limit)
        for pair, limit in limits.items()
    )


def _resolved(asked: Arguments, residual: str, batch: int) -> Config:
    one = Arguments({}, (*asked.overrides, f"residual={residual}"), asked.config_dir)
    (config,) = one.configurations(batch).values()
    return resolve_hardware(config)


def _reference_steps(
    references_for: Callable[[Subject], Mapping[str, nn.Module]], subject: Subject
) -> dict[str, Callable[[], object]]:
    subject.model.train()
    inputs, targets = inputs_and_targets(subject.batch)
    optim, steps = subject.config.optim, {}
    for name, reference in references_for(subject).items():
        losses = [model.loss(inputs, targets).item() for model in (subject.model, reference)]
        if abs(losses[0] - losses[1]) > 1e-4 * losses[1]:
            raise SystemExit(f"{name}: not the same model: losses {losses[0]} and {losses[1]}")
        step = TrainingStep(
            reference,  # type: ignore[arg-type]
            build_optimizer(reference, optim, fused=True),
            precision=subject.precision,
            clip_norm=optim.clip_norm,
        )
        steps[name] = partial(step, subject.batch)
    return steps


def _print_bound(name: str, config: Config, batch: int, rates: Rates) -> None:
    work = work_of_step(config, batch)
    print(
        f"bound of {name:15}{rates.seconds(work) * 1e3:9.1f} ms: {work.flops / 1e9:.1f} GFLOP at "
        f"{rates.flops_per_s / 1e9:.1f} GFLOP/s and {work.bytes / 1e9:.2f} GB at "
        f"{rates.bytes_per_s / 1e9:.1f} GB/s"
    )
