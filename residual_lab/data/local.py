"""Sources on this machine: the standard library's own code, and the user's files."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from residual_lab.data.documents import READABLE, format_of, read_documents, read_python
from residual_lab.data.source import Split, by_share, digest, grouped
from residual_lab.errors import DataError

NOT_STANDARD = frozenset({"site-packages", "dist-packages", "__pycache__"})
HASHED_BYTES = 2**30  # a larger source is known by names, sizes and times alone


class LocalFiles:
    """Files below ``root``, read in the order of their names' hashes.

    That order is a fixed shuffle, so that the first part of a corpus stands for all of it. A
    document's split follows from the hash of its text: no document is in two splits, and neither
    are two copies of one text.
    """

    def __init__(
        self, root: Path, names: list[str], text_field: str | None, fractions: tuple[float, float]
    ) -> None:
        self.root = root
        self.names = sorted(names, key=digest)
        self.text_field = text_field  # None: Python source, a document a file
        self.fractions = fractions

    def snapshot(self) -> str:
        return digest(*(f"{name} {size} {time}" for name, size, time in self._states()))

    def version(self) -> str:
        """A hash of all names and contents (of a source over 1 GiB: sizes and times instead)."""
        if sum(size for _, size, _ in self._states()) > HASHED_BYTES:
            return self.snapshot()
        return digest(*(part for name in self.names for part in (name, self._bytes(name))))

    def batches(
        self, split: Split, version: str, start: Any = None
    ) -> Iterator[tuple[list[str], Any]]:
        """Batches of documents; a position is the number of documents before it."""
        position = 0
        keep = by_share(split, *self.fractions)
        for batch in grouped(self._skip(filter(keep, self.documents()), start or 0)):
            position += len(batch)
            yield batch, (start or 0) + position

    def documents(self) -> Iterator[str]:
        """All documents of all splits that hold any text."""
        for name in self.names:
            path = self.root / name
            if self.text_field is not None:
                yield from filter(str.strip, read_documents(path, self.text_field))
            elif text := read_python(path):
                yield text

    @staticmethod
    def _skip(documents: Iterator[str], count: int) -> Iterator[str]:
        for _ in range(count):
            next(documents, None)
        return documents

    def _states(self) -> Iterator[tuple[str, int, int]]:
        for name in self.names:
            try:
                state = (self.root / name).stat()
            except OSError as error:
                raise DataError(f"{self.root / name} cannot be read: {error.strerror}") from None
            yield name, state.st_size, state.st_mtime_ns

    def _bytes(self, name: str) -> bytes:
        try:
            return (self.root / name).read_bytes()
        except OSError as error:
            raise DataError(f"{self.root / name} cannot be read: {error.strerror}") from None


def python_source(fractions: tuple[float, float], root: Path | None = None) -> LocalFiles:
    """The .py files of the running interpreter's standard library, tests included."""
    root = root or Path(sysconfig.get_path("stdlib"))
    names = [name for name in files_below(root, NOT_STANDARD) if name.endswith(".py")]
    if not names:
        raise DataError(
            f"data.source=python: no .py files in {root}: use an interpreter that has its standard "
            "library as files, or data=text data.path=FOLDER"
        )
    return LocalFiles(root, names, None, fractions)


def text_files(path: Path, text_field: str, fractions: tuple[float, float]) -> LocalFiles:
    """A file, or all readable files of a folder and the folders in it; hidden ones are left out."""
    if not path.exists():
        raise DataError(f"data.path={path} does not exist: give a file or folder of {READABLE}")
    if path.is_file():
        root, names = path.parent, [path.name]
    else:
        root, names = path, list(files_below(path))
    readable = [name for name in names if format_of(Path(name))]
    if not readable:
        raise DataError(f"data.path={path} holds none of {READABLE}: convert it to one of these")
    return LocalFiles(root, readable, text_field, fractions)


def files_below(root: Path, skipped: frozenset[str] = frozenset()) -> Iterator[str]:
    """Relative POSIX names of the files below ``root``, without hidden ones, pipes and sockets."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped and name[0] != "."]
        for file in files:
            path = Path(folder, file)
            if not file.startswith(".") and (path.is_file() or not path.exists()):
                yield path.relative_to(root).as_posix()
