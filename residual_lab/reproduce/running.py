"""Run what is missing of a table, with the time left, and find what is there."""

import json
import shutil
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from residual_lab.files import write_atomically
from residual_lab.jobs import quoted, run_jobs
from residual_lab.launch import FINISHED
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
    """Run what is missing, those first that others start from; return the exit status.

    A run whose beginning did not finish is left out. ``folder`` is for records of how jobs ended.
    """
    status = FINISHED
    waiting = missing(plan, kept)
    while waiting:
        ready = [one for one in waiting if one.after is None or _has_weights(one.after)]
        waiting = [one for one in waiting if one not in ready]
        if not ready:
            for one in waiting:
                assert one.after is not None
                print(
                    f"left out: {one.row}, seed {one.seed}: it starts from {one.after.row}, "
                    "which did not finish",
                    file=sys.stderr,
                )
            return status or 1
        jobs = [[*one.overrides, *_where(one, group)] for one in ready]
        with progress_of(ready, folder):
            status = max(status, run_jobs(jobs, folder, launcher))
        if status > 128:
            return status
    return status


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
                    left = bar.tasks[0].time_remaining
                    about = f"about {left / 60:.0f} min left" if left is not None else "…"
                    bar.console.print(
                        f"{len(ended)} of {len(runs)} runs: {name}; {about}", highlight=False
                    )
                told |= ended

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
    """Copy the small files of ended runs beside the table, without the places of this machine."""
    for planned in plan:
        source, target = planned.path, kept / planned.path.name
        if not (source / "result.json").exists() or _is_kept(source, target):
            continue
        temporary = target.with_name(f".{target.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        write_atomically(temporary / "config.yaml", _portable(source / "config.yaml"))
        for name in SMALL_FILES:
            if (source / name).exists():
                shutil.copyfile(source / name, temporary / name)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)


def _is_kept(source: Path, target: Path) -> bool:
    """Whether the copy is of this very result."""
    copy = target / "result.json"
    return copy.exists() and copy.read_bytes() == (source / "result.json").read_bytes()


def _portable(config: Path) -> str:
    plain = yaml.safe_load(config.read_text(encoding="utf-8"))
    plain["run"]["dir"] = "runs"
    plain["data"]["cache_dir"] = None
    if plain.get("start", {}).get("run"):
        plain["start"]["run"] = f"runs/{Path(plain['start']['run']).name}"
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
