"""Read runs back from their directories: configuration, result and, when asked, metrics."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from residual_lab.errors import LabError

# The C loader where PyYAML was built with it: six times as fast.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Run:
    """One run directory. ``config`` and ``result`` are plain; ``result`` is empty until the end."""

    path: Path
    config: dict[str, Any]
    result: dict[str, Any]

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def status(self) -> str:
        """finished, failed, diverged or unfinished."""
        return str(self.result.get("status", "unfinished"))

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of ``metrics.jsonl``, read at first use."""
        from residual_lab.run_directory import read_metrics

        return read_metrics(self.path / "metrics.jsonl")

    @cached_property
    def inspection(self) -> dict[str, Any]:
        """What ``inspection.json`` holds; empty where there is none. Raises LabError if broken."""
        path = self.path / "inspection.json"
        try:
            found = json.loads(path.read_bytes())
            if not isinstance(found, dict) or not isinstance(found.get("weights"), dict):
                raise ValueError("it has no weights")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise LabError(
                f"{path}: cannot be read ({error}); remove it, and residual-lab inspect "
                "makes it again from the run's final weights"
            ) from None
        return found


def load_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Every run in ``paths``: run directories, or folders that are searched to any depth.

    The order is that of the directories' paths, whatever the order of ``paths``; a run that is
    named twice counts once. A run that cannot be read is left out, with a line on standard error.
    Raises LabError for a path that does not exist.
    """
    runs, unreadable = read_runs(paths)
    for problem in unreadable:
        print(problem, file=sys.stderr)
    return runs


def read_runs(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """As :func:`load_runs`, with one line for each run that cannot be read as second result."""
    runs, unreadable = [], []
    for directory in _run_directories(paths):
        try:
            run = _read_run(directory)
        except (OSError, ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            unreadable.append(f"{directory}: this run cannot be read ({reason}); it is left out")
            continue
        if run is not None:
            runs.append(run)
    return runs, unreadable


def _run_directories(paths: Iterable[str | Path]) -> list[Path]:
    """In order of their paths, each once, under the name by which it was first met."""
    names = sorted({os.fspath(path) for path in paths})
    missing = [name for name in names if not Path(name).is_dir()]
    if missing:
        raise LabError(
            *(f"{name}: no such folder; name a run or a folder of runs" for name in missing)
        )
    found: dict[str, Path] = {}
    for name in names:
        for directory in _search(name):
            found.setdefault(os.path.realpath(directory), Path(directory))
    return sorted(found.values())


def _search(folder: str) -> Iterator[str]:
    """Folders with a ``config.yaml``; hidden ones and the insides of a run are not searched.

    Of links those to runs count; others are not followed, as they may lead back. A sweep's folder,
    ``RUN.DIR/sweeps/ID``, has no runs within: it is searched for what it says of its jobs.
    """
    for record in sorted(Path(folder).glob("jobs/*.json")):
        yield from _run_of_job(folder, record)
    for directory, subfolders, files in os.walk(folder):
        if "config.yaml" in files:
            subfolders.clear()
            yield directory
        else:
            subfolders[:] = [name for name in subfolders if not name.startswith(".")]
            for path in map(Path(directory).joinpath, subfolders):
                if path.is_symlink() and (path / "config.yaml").is_file():
                    yield str(path)


def _run_of_job(sweep: str, record: Path) -> Iterator[str]:
    """The run that a job's record names; beside the sweep first, as both may have moved."""
    try:
        run = str(json.loads(record.read_bytes())["run"] or "")
    except (ValueError, KeyError, TypeError):  # a file of somebody else's
        return
    beside = os.path.normpath(Path(sweep, "..", "..", Path(run).name))
    for path in (beside, run) if run else ():
        if Path(path, "config.yaml").is_file():
            yield path
            return


def _read_run(directory: Path) -> Run | None:
    """The run, or None where ``config.yaml`` is of another kind: Hydra's own have ``defaults``."""
    config = yaml.load((directory / "config.yaml").read_bytes(), Loader=_Loader)
    if not isinstance(config, dict):
        raise ValueError("config.yaml holds no configuration")
    if "defaults" in config:
        return None
    missing = [key for key in ("seed", "model", "residual", "data") if key not in config]
    if missing:
        raise ValueError(f"config.yaml has no {', '.join(missing)}")
    start = config.get("start") or {}
    if start.get("run"):
        start["run"] = _without_seed(Path(start["run"]), directory.parent)
    try:
        result = json.loads((directory / "result.json").read_bytes())
    except FileNotFoundError:
        result = {}
    if not isinstance(result, dict):
        raise ValueError("result.json holds no result")
    return Run(directory, config, result)


def _without_seed(run: Path, folder: Path) -> str:
    """A name for a run that others start from, the same for all its seeds.

    It ends in a hash of the run's configuration, which is looked for in ``folder`` first, as runs
    may have been moved together; where it is gone, the name does without.
    """
    name = re.sub(r"-s\d+-[0-9a-f]{8}$", "", run.name)
    for path in (folder / run.name, run):
        try:
            config = yaml.load((path / "config.yaml").read_bytes(), Loader=_Loader)
        except OSError:
            continue
        if not isinstance(config, dict):
            continue
        config = {k: v for k, v in config.items() if k not in ("seed", "run", "logger")}
        start = config.get("start") or {}
        if start.get("run"):
            start["run"] = _without_seed(Path(start["run"]), path.parent)
        text = json.dumps(config, sort_keys=True, default=str)
        return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return name
