"""A sweep: Hydra expands and launches the jobs; each becomes a run directory and a process.

What belongs to a sweep lies in ``RUN.DIR/sweeps/ID``, with ``ID`` a hash of the overrides, so
that the same command finds it again: ``jobs/NAME.json`` says how each run ended. The runs
themselves lie in ``run.dir`` like any other, so a run that is finished is never repeated.
"""

import hashlib
import json
import math
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residual_lab.config.composition import compose_unchecked, compose_with, resolved, started_hydra
from residual_lab.config.overrides import parse
from residual_lab.config.schema import absolute
from residual_lab.config.validation import validate
from residual_lab.errors import ConfigError, LabError
from residual_lab.gpu_locks import one_gpu
from residual_lab.launch import DIVERGED, FAILED, FINISHED, REFUSED, execute, handled, why_stopped
from residual_lab.run_directory import RunDirectory, write_atomically

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
    signals: list[int] = []
    with started_hydra(config_dir) as hydra:
        folder = _prepare(hydra, overrides, config_name)
        shutil.rmtree(folder / "jobs", ignore_errors=True)
        stop = folder / "stop"
        stop.unlink(missing_ok=True)

        def on_signal(number: int, _: Any) -> None:
            if signals:
                raise KeyboardInterrupt
            signals.append(number)
            stop.touch()
            sys.stderr.write("\nstopping: runs save and end; the same command goes on from there\n")

        place = str(folder).replace("\\", "\\\\").replace("'", "\\'")
        task = partial(run_job, common=frozenset(overrides))
        with handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), on_signal):
            trouble = _launch(hydra, task, [*overrides, f"hydra.sweep.dir='{place}'"], config_name)
    records = _records(folder)
    status = _report(records, trouble, signals)
    return status, [Path(record["run"]) for record in records if record["run"]]


def _launch(
    hydra: "Hydra", task: Callable[[Any], float], overrides: list[str], config_name: str
) -> str | None:
    """Return what went wrong in the launcher itself; jobs record their own failures."""
    try:
        hydra.multirun(config_name, task, overrides)
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:  # a launcher plugin's: a lost worker, a refused submission
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


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
            compose_with(hydra, job, config_name)
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


def run_job(composed: "DictConfig", common: frozenset[str]) -> float:
    """One job, in whatever process Hydra's launcher starts it: validate, execute, record.

    ``common`` are overrides as the command has them: what it does not have was swept over.
    Returns the validation loss, which is what a sweeper that searches minimises; NaN without.
    """
    from hydra.core.hydra_config import HydraConfig

    hydra = HydraConfig.get()
    folder, job = Path(hydra.sweep.dir), f"job {hydra.job.num}"
    if (folder / "stop").exists():
        return math.nan
    try:
        run = _run_directory(composed, folder.name)
        own = [text for text in hydra.overrides.task if text not in common]
        print(f"{job}: {run.path.name}  {' '.join(own)}", flush=True)
        alone = hydra.launcher._target_.endswith(".BasicLauncher")
        status, problem = _execute(run, folder, alone)
    except LabError as error:
        _record(folder, job, None, REFUSED, str(error))
        return math.nan
    removed = status == REFUSED and run.remove_if_never_begun()
    _record(folder, run.path.name, None if removed else run, status, problem)
    if problem is not None and run.config.run.fail_fast:
        (folder / "stop").touch()
    result = run.result or {}
    return float(result["val_loss"]) if status == FINISHED and "val_loss" in result else math.nan


def _run_directory(composed: "DictConfig", group: str) -> RunDirectory:
    config = validate(resolved(composed))
    if config.logger.group is None:
        logger = config.logger.model_copy(update={"group": group})
        config = config.model_copy(update={"logger": logger})
    return RunDirectory.create(config)


def _execute(run: RunDirectory, folder: Path, alone: bool) -> tuple[int, str | None]:
    """Return the exit status of the run and, where it is not 0, a line that says why."""
    match run.status:
        case "finished":
            return FINISHED, None
        case "diverged":
            return DIVERGED, "diverged"
        case "in use":
            return REFUSED, "in use by another process; wait for it or stop it"
    if not alone and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep's own process stops us
    with tempfile.TemporaryFile() as errors, one_gpu(run.config.hardware, folder) as environment:
        status = execute(
            run.path,
            environment=environment,
            errors=None if alone else errors,
            should_stop=(folder / "stop").exists,
        )
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
    if status == FINISHED or run.status == "finished":  # stopped too late to matter
        return FINISHED, None
    if status > 128:
        return status, f"{why_stopped(status)}; it can be resumed"
    if status == DIVERGED:
        return status, "diverged"
    stated = (run.result or {}).get("error") if status == FAILED else None
    if status == REFUSED and alone:  # it told the terminal
        last = _last_error(run.log)
    return status, stated or last or f"exit status {status}"


def _last_error(log: Path) -> str:
    """The message of the last line of a run's log that is an error, or nothing."""
    if not log.exists():
        return ""
    errors = [line for line in log.read_text(encoding="utf-8").splitlines() if " ERROR " in line]
    return errors[-1].partition(" ERROR ")[2] if errors else ""


def _record(
    folder: Path, name: str, run: RunDirectory | None, status: int, problem: str | None
) -> None:
    """Keep how a job ended for the end of the sweep, and say at once what went wrong."""
    record = {"run": str(run.path) if run else None, "exit_status": status, "problem": problem}
    (folder / "jobs").mkdir(exist_ok=True)
    write_atomically(folder / "jobs" / f"{name}.json", json.dumps({"name": name, **record}))
    if problem is not None:
        print(_line({"name": name, **record}), file=sys.stderr, flush=True)


def _records(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "jobs").glob("*.json"))
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


def _line(record: dict[str, Any]) -> str:
    kind = {DIVERGED: "diverged", REFUSED: "refused"}.get(record["exit_status"], "failed")
    if record["exit_status"] > 128:
        kind = "unfinished"
    return f"{kind}: {record['run'] or record['name']}: {record['problem']}"


def _report(records: list[dict[str, Any]], trouble: str | None, signals: list[int]) -> int:
    """Say once more what did not finish; return the exit status of the sweep."""
    bad = [record for record in records if record["problem"] is not None]
    print(f"\n{len(records) - len(bad)} of {len(records)} runs finished", flush=True)
    for record in bad:
        print(_line(record), file=sys.stderr)
    if signals:
        return 128 + signals[0]
    if trouble is not None:
        print(f"failed: the launcher stopped: {trouble}", file=sys.stderr)
        return FAILED
    statuses = {record["exit_status"] for record in bad}
    if statuses == {REFUSED} and len(bad) == len(records):
        return REFUSED
    if statuses - {DIVERGED}:
        return FAILED
    return DIVERGED if statuses else FINISHED
