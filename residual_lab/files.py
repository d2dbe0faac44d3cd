"""Write a file so that no reader ever sees half of it."""

import os
import tempfile
from pathlib import Path

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
        raise LabError(f"{path}: cannot be written ({error.strerror}); choose another") from error
