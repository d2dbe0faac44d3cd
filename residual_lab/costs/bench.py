"""Training step, forward pass and decoding step of several configurations, side by side."""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from residual_lab.config.schema import Config
from residual_lab.costs.bound import Rates, Work, probes, work_of_step
from residual_lab.costs.step import TrainingStep, computing_in, module_dtype
from residual_lab.costs.timing import Ratio, interleaved, ratio
from residual_lab.data.batches import example_batch, inputs_and_targets
from residual_lab.errors import LabError
from residual_lab.measure.environment import describe_devices
from residual_lab.measure.memory import peak_memory
from residual_lab.measure.parameters import count_parameters
from residual_lab.models import Decoder, build_model
from residual_lab.models.attention import KeyValueCache
from residual_lab.training.hardware import prepare_processor, resolve_hardware
from residual_lab.training.module import compile_model
from residual_lab.training.optimizer import build_optimizer
from residual_lab.training.recorder import synchronize

KINDS = ("training", "forward", "decoding")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass
class Measurement:
    """What was measured of one configuration."""

    config: Config
    parameters: int
    peak_memory: int | None  # bytes
    work: Work
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by kind, one value a round


@dataclass
class Bench:
    """Measurements of all configurations; the first is the base of all ratios."""

    device: str
    batch: int
    clock: str
    measurements: dict[str, Measurement]
    rates: Rates

    @property
    def base(self) -> Measurement:
        return next(iter(self.measurements.values()))

    def ratio(self, label: str, kind: str) -> Ratio | None:
        """To the first configuration; None where the kind was not measured."""
        seconds = self.measurements[label].seconds.get(kind)
        base = self.base.seconds.get(kind)
        return ratio(seconds, base) if seconds and base else None

    def bound(self, label: str) -> float | None:
        """The least ratio of a training step that the machine's speed allows.

        None but for float32, in which bytes are counted and the machine's speed is measured.
        """
        if self.base.config.hardware.precision != "32-true":
            return None
        seconds = median(self.base.seconds["training"])
        return self.rates.least_ratio(self.measurements[label].work, self.base.work, seconds)


class Subject:
    """One configuration made ready: what there is to do with it, by kind."""

    def __init__(self, config: Config, batch: int, device: torch.device) -> None:
        hardware = config.hardware
        self.config, self.precision = config, hardware.precision
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        self.model = build_model(config).to(device, module_dtype(self.precision))
        if hardware.compile:
            compile_model(self.model, by_unit=False)
        self.step = TrainingStep(
            self.model,
            build_optimizer(self.model, config.optim, fused=device.type in ("cpu", "cuda")),
            precision=self.precision,
            clip_norm=config.optim.clip_norm,
        )
        generator, dtype = torch.Generator().manual_seed(0), module_dtype(self.precision)
        example = example_batch(config, batch, generator=generator, dtype=dtype)
        self.batch = tree_map(lambda tensor: tensor.to(device), example)
        self.device = device
        self.peak_memory = self._peak_memory(before)
        self._caches: dict[torch.nn.Module, KeyValueCache] | None = None

    def work(self) -> dict[str, Callable[[], object]]:
        """By kind; no decoding where layers share weights, for they would share a cache too."""
        kinds: dict[str, Callable[[], object]] = {"training": self._train, "forward": self._read}
        if isinstance(self.model, Decoder) and self.model.config.share == 1:
            kinds["decoding"] = self._decode
        return kinds

    def _train(self) -> None:
        self.model.train()
        self.step(self.batch)

    @torch.no_grad()
    def _read(self) -> Tensor:
        self.model.eval()
        with computing_in(self.precision, self.device):
            return self.model.loss(*inputs_and_targets(self.batch))

    @torch.no_grad()
    def _decode(self) -> Tensor:
        """One token of each sequence, after all the others were read."""
        assert isinstance(self.model, Decoder)
        self.model.eval()
        with computing_in(self.precision, self.device):
            if self._caches is None:
                self._caches = self.model.new_caches()
                self.model.hidden(self.batch[:, :-1], self._caches)
            caches = {unit: KeyValueCache(c.keys, c.values) for unit, c in self._caches.items()}
            return self.model(self.batch[:, -1:], caches)

    def _peak_memory(self, before: int) -> int | None:
        """Bytes at the peak of a training step, those of other configurations left out."""
        self._train()
        memory = peak_memory(self.device, self.config.hardware.compile)
        memory.begin(self.model, self.step.optimizer)
        self._train()
        memory.end_step()
        memory.pause()
        return memory.peaks["value"] - before if "value" in memory.peaks else None


def bench(
    configurations: Mapping[str, Config],
    batch: int,
    rounds: int,
    kinds: tuple[str, ...] = KINDS,
    clock: str = "wall",
) -> Bench:
    """Measure ``configurations`` on the device of the first, ``batch`` sequences at a time.

    ``clock``: a key of :data:`CLOCKS`. Raises LabError for another, and for CPU time of another
    device's work.
    """
    if clock not in CLOCKS:
        raise LabError(f"clock={clock}: must be {' or '.join(CLOCKS)}")
    resolved = {label: resolve_hardware(config) for label, config in configurations.items()}
    first = next(iter(resolved.values()))
    prepare_processor(first.hardware)
    device = torch_device(first)
    if clock == "cpu" and device.type != "cpu":
        raise LabError(f"clock=cpu: the work is done on {device.type}; use clock=wall")
    subjects = {label: Subject(config, batch, device) for label, config in resolved.items()}
    measurements = {
        label: Measurement(
            subject.config,
            count_parameters(subject.model)["params"],
            subject.peak_memory,
            work_of_step(subject.config, batch),
        )
        for label, subject in subjects.items()
    }
    wait = functools.partial(synchronize, device)
    beside, work = probes(first, batch, device)
    for kind in kinds:
        by_label = {
            label: subject.work()[kind]
            for label, subject in subjects.items()
            if kind in subject.work()
        }
        if not by_label:
            continue
        work_of_kind = {**by_label, **(beside if kind == kinds[0] else {})}
        found = interleaved(work_of_kind, rounds, wait, now=CLOCKS[clock])
        for label, measurement in measurements.items():
            if label in by_label:
                measurement.seconds[kind] = found[label]
        if kind == kinds[0]:
            rates = Rates(
                work.flops / median(found["products"]), work.bytes / median(found["additions"])
            )
    return Bench(describe_devices(device, 1), batch, clock, measurements, rates)


def torch_device(config: Config) -> torch.device:
    """The first device of ``hardware.accelerator``, which is resolved."""
    if config.hardware.accelerator == "tpu":
        import torch_xla

        device: torch.device = torch_xla.device()
        return device
    return torch.device("cuda", 0) if config.hardware.accelerator == "gpu" else torch.device("cpu")
