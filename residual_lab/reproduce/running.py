"""Run what is missing of a table, with the time left, and find what is there."""

import json
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import yaml
from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from residual_lab.errors import LabError
from residual_lab.files import write_atomically
from residual_lab.jobs import quoted, run_jobs
from residual_lab.launch import DIVERGED, FAILED, FINISHED, REFUSED
from residual_lab.reproduce.plan import Planned
from residual_lab.run_directory import RunDirectory

SMALL_FILES = ("result.json", "metrics.jsonl", "inspection.json", "data-fingerprint")


def place_of(planned: Planned, kept: Path) -> Path:
    """The directory of a run: among the small files kept with the table if it is only there."""
    copy = kept / planned.path.name
    return copy if not planned.path.exists() and copy.exists() else planned.path


def status_of(planned: Planned, kept: Path) -> str:
    place = place_of(planned, kept)
    return RunDirectory.open(place).status if place.exists() else "unfinished"


def missing(plan: Sequence[Planned], kept: Path) -> list[Planned]:
    """The runs that have neither finished nor diverged, after those whose weights they need."""
    found: dict[Path, Planned] = {}
    for one in plan:
        if status_of(one, kept) in ("finished", "diverged"):
            continue
        chain = [one]
        while (parent := chain[-1].after) is not None and not _has_weights(parent):
            chain.append(parent)
        found |= {planned.path: planned for planned in reversed(chain)}
    return list(found.values())


def _has_weights(planned: Planned) -> bool:
    """The small files kept beside a table have none."""
    place = planned.path
    return place.exists() and RunDirectory.open(place).status == "finished"


def run_missing(
    plan: Sequence[Planned], kept: Path, folder: Path, launcher: Sequence[str], group: str
) -> int:
    """Run what is missing, those first that others start from.

    Returns the exit status of the last jobs: above 128 they were stopped.
    A run whose beginning did not finish is left out. ``folder`` is for records of how jobs ended.
    """
    status = FINISHED
    waiting = missing(plan, kept)
    shutil.rmtree(folder / "jobs", ignore_errors=True)  # an earlier command's, which progress reads
    with progress_of(waiting, folder) if waiting else nullcontext():
        while waiting and status <= 128:
            ready = [one for one in waiting if one.after is None or _has_weights(one.after)]
            waiting = [one for one in waiting if one not in ready]
            if not ready:
                _leave_out(waiting)
                break
            jobs = [[*one.overrides, *_where(one, group)] for one in ready]
            status = run_jobs(jobs, folder, launcher)
    return status


def _leave_out(waiting: Sequence[Planned]) -> None:
    for one in waiting:
        assert one.after is not None
        print(
            f"left out: {one.row}, seed {one.seed}: it starts from {one.after.row}, "
            "which did not finish",
            file=sys.stderr,
        )


def exit_status(plan: Sequence[Planned], kept: Path, stopped: int) -> int:
    """Of all planned runs, as of a sweep; ``stopped`` is that of the jobs just run."""
    statuses = {status_of(one, kept) for one in plan}
    if stopped > 128:
        return stopped
    if statuses - {"finished", "diverged"}:
        return REFUSED if stopped == REFUSED else FAILED
    return DIVERGED if "diverged" in statuses else FINISHED


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep ``folder`` for this process; if it made it and nothing was put there, it goes again.

    Raises LabError when another process has it, or it cannot be made.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise LabError(f"out={folder}: in use by another process; wait for it") from None
    except OSError as error:
        raise LabError(f"out={folder}: cannot be made ({error.strerror}); choose another") from None
    try:
        yield
    finally:
        (folder / ".lock").unlink(missing_ok=True)  # before the lock goes: who comes next makes one
        lock.release()
        if made and not any(folder.iterdir()):
            folder.rmdir()


def _where(planned: Planned, group: str) -> list[str]:
    config = planned.config
    own = [] if config.logger.group is not None else [f"logger.group={quoted(group)}"]
    return [f"run.dir={quoted(config.run.dir)}", *own]


@contextmanager
def progress_of(runs: Sequence[Planned], folder: Path) -> Iterator[None]:
    """Show how far all runs are, from their files, whatever machine they are on."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    over = threading.Event()
    total = sum(run.config.steps for run in runs)
    with Progress(*columns, console=console, speed_estimate_period=600, transient=True) as bar:
        begun = sum(map(_steps_done, runs))
        task = bar.add_task(f"{len(runs)} runs", total=total, completed=begun)

        def watch() -> None:
            told: set[str] = set()
            while not over.wait(2):
                done = sum(map(_steps_done, runs))
                bar.update(task, completed=done)
                ended = {path.stem for path in folder.glob("jobs/*.json")}
                for name in sorted(ended - told):
                    told.add(name)
                    left = None if (folder / "stop").exists() else bar.tasks[0].time_remaining
                    about = f"about {left / 60:.0f} min left" if left is not None else "…"
                    bar.console.print(
                        f"{len(told)} of {len(runs)} runs: {name}; {about}", highlight=False
                    )

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _steps_done(planned: Planned) -> int:
    """The last step in ``metrics.jsonl``; all of them once there is a result."""
    if (planned.path / "result.json").exists():
        return planned.config.steps
    try:
        with (planned.path / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 4096))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return int(json.loads(lines[-1])["step"]) if lines else 0
    except (OSError, ValueError, KeyError, TypeError):  # not there yet, or half a line
        return 0


def keep(plan: Sequence[Planned], kept: Path) -> None:
    """Copy the small files of ended runs beside the table."""
    for planned in plan:
        source, target = planned.path, kept / planned.path.name
        if not (source / "result.json").exists() or _is_kept(source, target):
            continue
        kept.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=kept))
        temporary.chmod(0o755)
        write_atomically(temporary / "config.yaml", _portable(source / "config.yaml"))
        for name in SMALL_FILES:
            if (source / name).exists():
                shutil.copyfile(source / name, temporary / name)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)


def _is_kept(source: Path, target: Path) -> bool:
    """Whether the copy is of this very result, and as complete."""
    return all(_content(source / name) == _content(target / name) for name in SMALL_FILES)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _portable(config: Path) -> str:
    """Without where runs and prepared data lie on this machine, which changes no result."""
    plain = yaml.safe_load(config.read_text(encoding="utf-8"))
    plain["run"]["dir"] = "runs"
    if "cache_dir" in plain["data"]:  # of text alone
        plain["data"]["cache_dir"] = None
    if plain.get("start", {}).get("run"):
        plain["start"]["run"] = f"runs/{Path(plain['start']['run']).name}"
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
