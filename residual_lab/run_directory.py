"""A run is a directory; this module names, creates, locks and reads it. It imports no torch."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from residual_lab.config.schema import Config
from residual_lab.errors import LabError
from residual_lab.files import write_atomically

Status = Literal["finished", "failed", "diverged", "unfinished", "in use"]

# Sections and keys that cannot change a result.
_UNHASHED_SECTIONS = {"run", "logger"}
_UNHASHED_DATA = {"cache_dir", "workers"}


def config_hash(config: Config) -> str:
    """The SHA-256, in hexadecimal, of everything that can change the result, seed included.

    Keys at the schema's default are left out, so that a key that a later version adds leaves the
    hashes of earlier runs as they are. A connection in a file of the user's own counts with what
    the file says, not with its place.
    """
    plain = config.model_dump(mode="json", exclude=_UNHASHED_SECTIONS, exclude_defaults=True)
    plain["data"] = {k: v for k, v in plain["data"].items() if k not in _UNHASHED_DATA}
    if config.start.run is not None:
        plain["start"] = {"run": Path(config.start.run).name}
    source, _, class_name = config.residual.connection.rpartition(":")
    if source.endswith(".py") and Path(source).is_file():
        text = hashlib.sha256(Path(source).read_bytes()).hexdigest()
        plain["residual"]["connection"] = f"{text}:{class_name}"
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


class RunDirectory:
    """One run on disk: ``config.yaml``, ``metrics.jsonl``, ``result.json``, ``log.txt`` and more.

    Make one with :meth:`create` or :meth:`open`.
    """

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self.config = config
        self.metrics = path / "metrics.jsonl"
        self.log = path / "log.txt"
        self.checkpoints = path / "checkpoints"
        self._result = path / "result.json"
        self._lock = path / ".lock"
        self._data_fingerprint = path / "data-fingerprint"

    @staticmethod
    def path_of(config: Config) -> Path:
        """``{name}-s{seed}-{hash8}`` in ``config.run.dir``, whether it exists or not."""
        name = f"{config.name}-s{config.seed}-{config_hash(config)[:8]}"
        return Path(config.run.dir) / name

    @classmethod
    def create(cls, config: Config) -> "RunDirectory":
        """Make the directory of ``config``, or return it when it is there already.

        Two processes may do so at once. A run that will be executed (again) takes over the
        keys of ``config`` that do not enter the hash, such as the logger.
        Raises LabError when ``config.run.dir`` cannot be written to.
        """
        path = cls.path_of(config)
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        try:
            _make_directory(path, text)
            run = cls.open(path)
            if run.config != config and run.status in ("failed", "unfinished"):
                write_atomically(path / "config.yaml", text)
                run = cls.open(path)
        except OSError as error:
            raise LabError(
                f"run.dir={config.run.dir}: cannot make {path.name} there: {error}"
            ) from None
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Read the run directory ``path``.

        Raises LabError when it is none, and when its configuration is not that of the hash in its
        name; a name without a hash is not asked.
        """
        path = Path(path).absolute()
        if not path.is_dir():
            raise LabError(f"{path}: no such folder; name a run directory")
        try:
            plain = yaml.safe_load((path / "config.yaml").read_text(encoding="utf-8"))
            run = cls(path, Config.model_validate(plain))
        except (OSError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise LabError(f"{path}: not a run directory, its config.yaml: {reason}") from None
        except ValidationError as error:
            keys = ", ".join(".".join(map(str, e["loc"])) or "all" for e in error.errors())
            raise LabError(
                f"{path}: its config.yaml does not fit this version (keys: {keys}); train it anew"
            ) from None
        named = re.search(r"-s\d+-([0-9a-f]{8})$", path.name)
        if named is not None and named[1] != config_hash(run.config)[:8]:
            raise LabError(
                f"{path}: its config.yaml, or the file of its connection, is not the one that the "
                "hash in its name is of (edited, or of another version); restore it, or train anew "
                "with overrides in place of edits"
            )
        return run

    @property
    def result(self) -> dict[str, Any] | None:
        """What ``result.json`` holds, or None before the run's end. Raises LabError if broken."""
        try:
            result: dict[str, Any] = json.loads(self._result.read_text(encoding="utf-8"))
            if not isinstance(result, dict) or "status" not in result:
                raise ValueError("it holds no result")
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise LabError(
                f"{self._result}: cannot be read ({error}); restore it, or remove it to train the "
                "run again"
            ) from None
        return result

    def write_result(self, result: Mapping[str, Any]) -> None:
        write_atomically(self._result, json.dumps(result, indent=2, ensure_ascii=False) + "\n")

    @property
    def data_fingerprint(self) -> str | None:
        """That of the data on which the run began; None before that."""
        try:
            return self._data_fingerprint.read_text(encoding="utf-8").strip() or None
        except FileNotFoundError:
            return None

    def write_data_fingerprint(self, fingerprint: str) -> None:
        write_atomically(self._data_fingerprint, fingerprint + "\n")

    @property
    def status(self) -> Status:
        if self._in_use():
            return "in use"
        result = self.result
        status: Status = "unfinished" if result is None else result["status"]
        return status

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the run for this process; the system lets go when the process dies.

        Raises LabError when another process holds it, and where this one may not write.
        """
        try:
            if not os.access(self.path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            opened = self._lock.open("a+", encoding="utf-8")
        except OSError as error:
            raise LabError(
                f"{self.path}: cannot be written to ({error.strerror}); change its permissions, "
                "or train in another run.dir"
            ) from None
        with opened as file:
            if not _try_lock(file.fileno(), attempts=5):
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise LabError(f"{self.path}: in use by {holder}; wait for it or stop it")
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield
            file.truncate(0)

    def remove_if_never_begun(self) -> bool:
        """Remove the directory unless it holds training or a result, or is in use.

        Returns whether it is gone.
        """
        kept = (self.metrics, self.checkpoints, self._result)
        try:
            with self.lock():
                if any(path.exists() for path in kept):
                    return False
                aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
                self.path.rename(aside)  # nobody finds half of it
                shutil.rmtree(aside)
        except (LabError, OSError):  # another process has it, or it is not ours to remove
            return False
        return True

    def _in_use(self) -> bool:
        try:
            descriptor = os.open(self._lock, os.O_RDONLY)
        except OSError:  # not there, or not ours to open: lock() says which
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False


def _make_directory(path: Path, config_text: str) -> None:
    """Make ``path`` with its config.yaml inside, both or neither."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        temporary.chmod(0o755)
        write_atomically(temporary / "config.yaml", config_text)
        temporary.rename(path)
    except OSError:
        if not path.exists():  # otherwise another process was first: its directory is the same
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _try_lock(descriptor: int, attempts: int) -> bool:
    """Try more than once: a process that asks for the status holds the lock for a moment."""
    for _ in range(attempts):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        else:
            return True
    return False


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``, training and validation, in the order of steps.

    A resumed run repeats the steps since its checkpoint: the last row of each kind and step
    counts. A row that a kill cut short is dropped. Raises LabError for any other broken line.
    """
    path = Path(path)
    rows: dict[tuple[bool, int], dict[str, Any]] = {}
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        row = _read_row(line)
        if row is not None:
            rows[("val_loss" in row, row["step"])] = row
        elif line.strip() and number < len(lines):
            raise LabError(f"{path}: line {number} is not a row of metrics: {line[:80]}")
    return sorted(rows.values(), key=lambda row: row["step"])


def _read_row(line: str) -> dict[str, Any] | None:
    # Rows are flat, so the last "{" starts the row that was appended to a torn one.
    try:
        row: dict[str, Any] = json.loads(line[max(line.rfind("{"), 0) :])
    except json.JSONDecodeError:
        return None
    return row
