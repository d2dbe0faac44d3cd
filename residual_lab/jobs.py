"""Jobs of a sweep or a table: each becomes a run directory and a process of its own.

Hydra's launcher starts the jobs, here or on other machines. ``FOLDER/jobs/NAME.json`` says how
each ended; a file ``FOLDER/stop`` asks all of them to save and end.
"""

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
from typing import TYPE_CHECKING, Any, TextIO

from residual_lab.config.composition import compose_unchecked, resolved, started_hydra
from residual_lab.config.validation import validate
from residual_lab.errors import LabError
from residual_lab.files import write_atomically
from residual_lab.gpu_locks import one_gpu
from residual_lab.launch import DIVERGED, FAILED, FINISHED, REFUSED, execute, handled, why_stopped
from residual_lab.run_directory import RunDirectory

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.plugins.launcher import Launcher
    from omegaconf import DictConfig


def run_jobs(
    jobs: Sequence[Sequence[str]],
    folder: Path,
    launcher: Sequence[str] = (),
) -> int:
    """Run ``jobs``, each the overrides of one run, through Hydra's launcher; return the status.

    ``launcher`` are overrides of Hydra's own, such as ``hydra/launcher=joblib``. The runs show no
    progress bars, and what is said goes to standard error. The overrides are not checked
    beforehand: a job that is refused says so. Raises ConfigError for a launcher that is not there.
    """
    common = frozenset(jobs[0]).intersection(*jobs) if len(jobs) > 1 else frozenset[str]()
    task = partial(run_job, common=common, shown=False)
    with started_hydra() as hydra:
        launch = _launcher(hydra, task, folder, launcher).launch
        status, _ = supervised(folder, partial(launch, [list(job) for job in jobs], 0), sys.stderr)
    return status


def _launcher(
    hydra: "Hydra", task: Callable[[Any], float], folder: Path, chosen: Sequence[str]
) -> "Launcher":
    """Hydra's launcher, before any job; raises ConfigError for one that is not there."""
    from hydra._internal.callbacks import Callbacks
    from hydra.core.plugins import Plugins
    from hydra.types import HydraContext, RunMode

    overrides = [*chosen, sweep_folder(folder)]
    master = compose_unchecked(hydra, overrides, run_mode=RunMode.MULTIRUN)
    context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(master))
    return Plugins.instance().instantiate_launcher(
        hydra_context=context, task_function=task, config=master
    )


def sweep_folder(folder: Path) -> str:
    """The override that tells Hydra where the files of its launcher go."""
    return f"hydra.sweep.dir={quoted(folder)}"


def quoted(value: str | Path) -> str:
    """As Hydra's overrides quote a text."""
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def supervised(
    folder: Path, launch: Callable[[], Any], out: TextIO | None = None
) -> tuple[int, list[Path]]:
    """Launch jobs that keep their records in ``folder``; return exit status and run directories.

    Ctrl-C and SIGTERM let those in flight save and start no more; a second one does not wait.
    """
    signals: list[int] = []
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "jobs", ignore_errors=True)
    stop = folder / "stop"
    stop.unlink(missing_ok=True)

    def on_signal(number: int, _: Any) -> None:
        if signals:
            raise KeyboardInterrupt
        signals.append(number)
        stop.touch()
        sys.stderr.write("\nstopping: runs save and end; the same command goes on from there\n")

    with handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), on_signal):
        trouble = _trouble(launch)
    records = _records(folder)
    status = _report(records, trouble, signals, out)
    return status, [Path(record["run"]) for record in records if record["run"]]


def _trouble(launch: Callable[[], Any]) -> str | None:
    """Return what went wrong in the launcher itself; jobs record their own failures."""
    try:
        launch()
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:  # a launcher plugin's: a lost worker, a refused submission
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return None


def run_job(composed: "DictConfig", common: frozenset[str], shown: bool = True) -> float:
    """One job, in whatever process Hydra's launcher starts it: validate, execute, record.

    ``common`` are overrides that are no news to the reader: those of the command, or of all jobs.
    ``shown``: a job that runs by itself has the terminal, with its progress bar.
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
        out = sys.stdout if shown else sys.stderr
        print(f"{job}: {run.path.name}  {' '.join(own)}", file=out, flush=True)
        alone = hydra.launcher._target_.endswith(".BasicLauncher")
        status, problem = _execute(run, folder, alone, shown)
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


def _execute(run: RunDirectory, folder: Path, alone: bool, shown: bool) -> tuple[int, str | None]:
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
            errors=None if alone and shown else errors,
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
    if status == REFUSED and alone and shown:  # it told the terminal
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


def _report(
    records: list[dict[str, Any]],
    trouble: str | None,
    signals: list[int],
    out: TextIO | None,
) -> int:
    """Say once more what did not finish; return the exit status of the sweep."""
    if not records and not signals and trouble is None:
        print(
            "there is nothing to run: a sweep has no values, or its glob fits none; name some",
            file=sys.stderr,
        )
        return REFUSED
    bad = [record for record in records if record["problem"] is not None]
    print(f"\n{len(records) - len(bad)} of {len(records)} runs finished", file=out, flush=True)
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
