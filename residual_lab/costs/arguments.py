"""The arguments of commands that look at several configurations at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from residual_lab.config.composition import (
    compose_unchecked,
    compose_with,
    resolved,
    started_hydra,
)
from residual_lab.config.overrides import parse
from residual_lab.config.schema import Config
from residual_lab.config.validation import validate
from residual_lab.errors import ConfigError, LabError, suggestion

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.core.override_parser.types import Override

SHORT = {
    "sequence": "data.sequence_length",
    "precision": "hardware.precision",
    "threads": "hardware.threads",
}


@dataclass(frozen=True)
class Arguments:
    """``options`` are the command's own, the rest are overrides of the configuration."""

    options: Mapping[str, str]
    overrides: tuple[str, ...]
    config_dir: str | None = None

    @classmethod
    def of(cls, arguments: Sequence[str], own: Sequence[str]) -> "Arguments":
        """Sort ``KEY=VALUE`` arguments. Raises LabError for anything else."""
        options: dict[str, str] = {}
        overrides: list[str] = []
        config_dir = None
        rest = iter(arguments)
        for argument in rest:
            key, equals, value = argument.partition("=")
            if key in ("--config-dir", "-cd"):
                config_dir = value if equals else next(rest, "")
            elif key in own and equals:
                options[key] = value
            elif not equals and not key.startswith("~"):
                raise LabError(
                    f"{argument}: expected KEY=VALUE{suggestion(key.lstrip('-'), own)} "
                    f"(own keys: {', '.join(own)}; further ones override the configuration)"
                )
            else:
                overrides.append(f"{SHORT.get(key, key)}={value}" if equals else argument)
        return cls(options, tuple(overrides), config_dir)

    def whole_number(self, key: str, default: int | None, least: int = 1) -> int | None:
        """The option ``key``, at least ``least``. Raises LabError for what is no such number."""
        text = self.options.get(key)
        return default if text is None else whole_number(key, text, least)

    def configurations(self, batch: int | None = None) -> dict[str, Config]:
        """Every combination of the values given, by what tells it from the others.

        ``batch`` sequences per device and micro-batch replace the configuration's budget.
        Raises ConfigError with the problems of all combinations.
        """
        if batch is not None and any(text.startswith("budget.") for text in self.overrides):
            raise LabError(f"batch={batch}: budget.* says how large a batch is too; give one")
        found: dict[str, Config] = {}
        problems: list[str] = []
        with started_hydra(self.config_dir) as hydra:
            parsed, problems = parse(self.overrides, hydra.config_loader)
            varied = [o.key_or_group for o in parsed if o.is_sweep_override()]
            for job in _product(parsed):
                try:
                    config = _compose(hydra, job, batch)
                except ConfigError as error:
                    problems += error.problems
                else:
                    found[_label(job, varied, config)] = config
        if problems:
            raise ConfigError(*dict.fromkeys(problems))
        return found


def whole_number(key: str, text: str, least: int) -> int:
    """The number that ``KEY=text`` gives. Raises LabError for what is none, or below ``least``."""
    if not text.isdecimal() or int(text) < least:
        raise LabError(f"{key}={text}: must be a whole number ≥ {least}")
    return int(text)


def _product(parsed: Sequence["Override"]) -> list[list[str]]:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    try:
        batches = BasicSweeper.split_arguments(list(parsed), None)
    except HydraException as error:
        raise ConfigError(" ".join(str(error).split())) from None
    return [list(job) for jobs in batches for job in jobs]


def _compose(hydra: "Hydra", overrides: list[str], batch: int | None) -> Config:
    if batch is None:
        return compose_with(hydra, overrides)
    try:
        plain = resolved(compose_unchecked(hydra, overrides))
    except ConfigError:
        return compose_with(hydra, overrides)  # raises, and says more
    plain["budget"] = _budget(plain, batch)
    return validate(plain)


def _budget(plain: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """One step in which each device gets ``batch`` sequences at a time."""
    hardware, length = plain["hardware"], plain["data"].get("sequence_length", 1)
    parts = [hardware["accumulate"], hardware["devices"], hardware["nodes"], length]
    for part in parts:
        batch *= part if isinstance(part, int) and part > 0 else 1  # else `validate` tells
    return {"tokens": None, "steps": 1, "batch_tokens": batch}


def _label(job: Sequence[str], varied: Sequence[str], config: Config) -> str:
    """The residual's name, then the other values that vary: ``laurel_rw layers=28``."""
    values = dict(text.lstrip("+").partition("=")[::2] for text in job)
    others = [
        f"{key.rpartition('.')[2]}={values[key]}" for key in varied if key not in ("residual",)
    ]
    return " ".join([config.residual.name, *others])


def sequences_per_device(config: Config) -> int:
    """How many sequences one device reads at a time; one device where their number is open."""
    hardware = config.hardware
    devices = hardware.devices if isinstance(hardware.devices, int) else 1
    return config.batch_sequences // (devices * hardware.nodes * hardware.accumulate)
