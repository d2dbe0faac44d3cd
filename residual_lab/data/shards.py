"""Tokens on disk: shards of a split, written so that a cut-off preparation goes on, and read."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from residual_lab.data.source import Split

SHARD_TOKENS = 2**27  # 256 MiB of 16-bit tokens


def token_type(vocabulary: int) -> str:
    """The smallest little-endian unsigned integers that hold the ids of a vocabulary."""
    return "<u2" if vocabulary <= 2**16 else "<u4"


def write_json(path: Path, value: Any) -> None:
    """Write whole or not at all."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=1), encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """The value in a file; None where there is none or it is torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None


class SplitWriter:
    """Appends a split's tokens to its shards, and records after each append how far it is.

    ``position`` is the source's own mark. A new writer on the same folder goes on from the last
    recorded append; what was written after it is cut off.
    """

    def __init__(self, folder: Path, split: Split, dtype: str, shard_tokens: int = SHARD_TOKENS):
        self.folder, self.split, self.shard_tokens = folder, split, shard_tokens
        self.dtype = np.dtype(dtype)
        self.record = folder / f"{split}.json"
        self.tokens, self.documents, self.position, self.complete = 0, 0, None, False
        self._resume()

    def append(self, tokens: NDArray[Any], documents: int, position: Any) -> None:
        while len(tokens):
            number, filled = divmod(self.tokens, self.shard_tokens)
            part, tokens = np.split(tokens, [self.shard_tokens - filled])
            with self._path(number).open("ab") as shard:
                shard.write(part.astype(self.dtype, copy=False).tobytes())
            self.tokens += len(part)
        self.documents, self.position = self.documents + documents, position
        self._save()

    def finish(self) -> None:
        self.complete = True
        self._save()

    def summary(self) -> dict[str, Any]:
        """The split's entry in the manifest."""
        shards = [self._path(number).name for number in range(-(-self.tokens // self.shard_tokens))]
        return {"tokens": self.tokens, "documents": self.documents, "shards": shards}

    def _resume(self) -> None:
        state = read_json(self.record)
        if state is not None and self._cut(state["tokens"]):
            self.tokens, self.documents = state["tokens"], state["documents"]
            self.position, self.complete = state["position"], state["complete"]
        else:
            self._cut(0)

    def _cut(self, tokens: int) -> bool:
        """Shorten the shards to ``tokens`` in all; False: they hold less."""
        whole, rest = divmod(tokens, self.shard_tokens)
        sizes = dict.fromkeys(range(whole), self.shard_tokens) | {whole: rest}
        for path in sorted(self.folder.glob(f"{self.split}-*.bin")):
            number = int(path.stem.rpartition("-")[2])
            size = sizes.pop(number, 0) * self.dtype.itemsize
            if path.stat().st_size < size:
                return False
            os.truncate(path, size)
        return not any(sizes.values())

    def _save(self) -> None:
        state = {"tokens": self.tokens, "documents": self.documents}
        write_json(self.record, state | {"position": self.position, "complete": self.complete})

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.split}-{number:05d}.bin"


class Tokens:
    """The tokens of one split, one long sequence over memory-mapped shards."""

    def __init__(self, paths: Sequence[Path], dtype: str) -> None:
        self.paths = tuple(paths)
        self.shards = [np.memmap(path, dtype=dtype, mode="r") for path in paths]
        self.ends = np.cumsum([len(shard) for shard in self.shards], dtype=np.int64)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens ``start`` to ``stop``, copied out as int64."""
        parts = []
        shard = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            end = int(self.ends[shard])
            offset = start - (end - len(self.shards[shard]))
            part = self.shards[shard][offset : offset + stop - start]
            parts.append(part.astype(np.int64))
            start, shard = start + len(part), shard + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def windows(self, sequence_length: int) -> int:
        """How many sequences of ``sequence_length`` inputs and targets there are, side by side."""
        return max(0, (len(self) - 1) // sequence_length)

    def window(self, index: int, sequence_length: int) -> NDArray[np.int64]:
        """Sequence ``index``: its inputs and, one token later, its targets: length + 1 tokens."""
        start = int(index) * sequence_length
        return self.read(start, start + sequence_length + 1)
