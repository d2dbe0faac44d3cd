"""Tokenise batches of documents in parallel processes, in order. Imports no torch."""

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from residual_lab.data.tokenizer import usable
from residual_lab.errors import DataError

Batches = Iterator[tuple[list[str], Any]]
Encoded = tuple[NDArray[Any], int, Any]  # tokens, documents, position after them


class Encoder:
    """Tokenises in ``workers`` processes, which start when there is more than one batch."""

    def __init__(self, tokenizer: Tokenizer, end: int, dtype: str, workers: int) -> None:
        self.settings = tokenizer.to_str(), end, dtype
        self.workers = workers
        self.pool: ProcessPoolExecutor | None = None
        _start(*self.settings)

    def __enter__(self) -> "Encoder":
        return self

    def __exit__(self, *_: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)

    def encode(self, batches: Batches) -> Iterator[Encoded]:
        """Yield each batch's tokens in the order of the batches."""
        first = list(itertools.islice(batches, 2))
        batches = itertools.chain(first, batches)
        if self.workers == 1 or (len(first) < 2 and self.pool is None):
            for texts, position in batches:
                yield _encode(texts), len(texts), position
            return
        try:
            yield from self._in_parallel(batches)
        except BrokenProcessPool:
            raise DataError(
                "data.workers: a tokenising process died: too little memory, or a script without "
                "`if __name__ == '__main__':`; data.workers=1 does without them"
            ) from None

    def _in_parallel(self, batches: Batches) -> Iterator[Encoded]:
        self.pool = self.pool or ProcessPoolExecutor(
            self.workers, multiprocessing.get_context("spawn"), _start_worker, self.settings
        )
        waiting: deque[tuple[Future[NDArray[Any]], int, Any]] = deque()
        for texts, position in batches:
            waiting.append((self.pool.submit(_encode, texts), len(texts), position))
            if len(waiting) > 2 * self.workers:
                future, documents, after = waiting.popleft()
                yield future.result(), documents, after
        for future, documents, after in waiting:
            yield future.result(), documents, after


_settings: tuple[Tokenizer, int, str]


def _start(serialised: str, end: int, dtype: str) -> None:
    global _settings
    _settings = usable(Tokenizer.from_str(serialised)), end, dtype


def _start_worker(serialised: str, end: int, dtype: str) -> None:
    """One thread a process; the parent handles Ctrl-C; no worker outlives the parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    _start(serialised, end, dtype)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _encode(texts: list[str]) -> NDArray[Any]:
    """The ids of all documents, each followed by the end-of-text token."""
    tokenizer, end, dtype = _settings
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return np.concatenate([np.array([*encoding.ids, end], dtype) for encoding in encodings])
