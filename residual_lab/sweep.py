"""A sweep: Hydra expands and launches the jobs; each becomes a run directory and a process.

What belongs to a sweep lies in ``RUN.DIR/sweeps/ID``, with ``ID`` a hash of the overrides, so
that the same command finds it again: ``jobs/NAME.json`` says how each run ended. The runs
themselves lie in ``run.dir`` like any other, so a run that is finished is never repeated.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from residual_lab.config.composition import compose_unchecked, compose_with, started_hydra
from residual_lab.config.overrides import parse
from residual_lab.config.schema import Config, absolute
from residual_lab.errors import ConfigError, LabError
from residual_lab.jobs import run_job, supervised, sweep_folder

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


def run_sweep(
    overrides: Sequence[str], config_dir: str | None = None, config_name: str = "config"
) -> tuple[int, list[Path]]:
    """Run what is missing of a sweep; return the exit status and the run directories.

    Every configuration is validated before the first job starts: raises ConfigError.
    """
    with started_hydra(config_dir) as hydra:
        folder = _prepare(hydra, overrides, config_name)
        task = partial(run_job, common=frozenset(overrides))
        arguments = [*overrides, sweep_folder(folder)]
        return supervised(folder, partial(hydra.multirun, config_name, task, arguments))


def _prepare(hydra: "Hydra", overrides: Sequence[str], config_name: str) -> Path:
    """Validate every job and make the sweep's folder."""
    parsed, problems = parse(overrides, hydra.config_loader)
    fixed = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
    try:
        base = compose_unchecked(hydra, fixed, config_name)
    except ConfigError:  # an override's fault, so each job's: there it is explained
        base = None
    for job in _expanded(hydra, parsed, base):
        try:
            problems += _on_other_hosts(compose_with(hydra, job, config_name))
        except ConfigError as error:
            problems += error.problems
    if problems or base is None:
        raise ConfigError(*dict.fromkeys(problems))
    folder = Path(absolute(base.run.dir)) / "sweeps" / _sweep_id(parsed, base)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"run.dir={base.run.dir}: cannot make {folder}: {error}") from None
    return folder


def _on_other_hosts(config: Config) -> list[str]:
    if not config.hardware.needs_launcher:
        return []
    return [
        f"hardware.nodes={config.hardware.nodes}: a sweep starts nothing on other hosts; train "
        "without -m makes each run and says how to start it, or set hardware.nodes=1"
    ]


def _expanded(
    hydra: "Hydra", parsed: Sequence["Override"], base: "DictConfig | None"
) -> list[list[str]]:
    """The overrides of every job, as Hydra's basic sweeper makes them.

    None for other sweepers: they choose as they go.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.errors import HydraException

    lines = [str(o.input_line) for o in parsed if not o.is_hydra_override()]
    if base is not None:
        if not base.hydra.sweeper._target_.endswith(".BasicSweeper"):
            return []
        lines = [*_sweeper_parameters(base), *lines]
    hydras_own = [str(o.input_line) for o in parsed if o.is_hydra_override()]
    try:
        swept = parse(lines, hydra.config_loader)[0]
        batches = BasicSweeper.split_arguments(swept, None)
    except HydraException as error:
        raise ConfigError(f"-m: {' '.join(str(error).split())}") from None
    return [[*hydras_own, *job] for batch in batches for job in batch]


def _sweeper_parameters(base: "DictConfig") -> list[str]:
    """The part of a sweep that stands in a YAML, under ``hydra.sweeper.params``."""
    return [f"{key}={value}" for key, value in (base.hydra.sweeper.params or {}).items()]


def _sweep_id(parsed: Sequence["Override"], base: "DictConfig") -> str:
    """Eight hexadecimal digits of all that says which runs there are."""
    unrelated = ("hydra.", "hydra/", "run.")
    lines = [str(o.input_line) for o in parsed if not o.key_or_group.startswith(unrelated)]
    lines += _sweeper_parameters(base)
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:8]
