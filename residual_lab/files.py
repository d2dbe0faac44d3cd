"""Write a file so that no reader ever sees half of it, and read JSON back."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from residual_lab.errors import LabError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write to a temporary name beside ``path``, then rename: a reader sees all or nothing."""
    whole = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_output(path: Path, content: str | bytes) -> None:
    """Write what a user asked for, and the folder that it is in; raises LabError if refused."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise _unwritable(path, str(error.strerror)) from error


def check_writable(path: Path) -> None:
    """Raise, before the work is done, what :func:`write_output` would after it; writes nothing."""
    reason = "Is a directory" if path.is_dir() else None
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not folder.is_dir():
        reason = f"{folder} is no folder"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = "Permission denied"
    if reason:
        raise _unwritable(path, reason)


def _unwritable(path: Path, reason: str) -> LabError:
    return LabError(f"{path}: cannot be written ({reason}); choose another")


def write_json(path: Path, plain: Any) -> None:
    """As :func:`write_output`, a line each entry."""
    write_output(path, json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path, remedy: str) -> dict[str, Any] | None:
    """What the file holds; None if there is none. Raises LabError, which ends in ``remedy``."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(plain, dict):
            raise ValueError("it holds no section")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LabError(f"{path}: cannot be read ({error}); {remedy}") from None
    return plain
