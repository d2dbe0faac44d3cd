"""What a source of documents offers, and the rule that gives each document its split."""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any, Literal, Protocol

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
BATCH_CHARACTERS = 2**20  # text that is tokenised, and recorded as done, at a time


class Source(Protocol):
    """Documents of three splits, read in an order that never changes."""

    def snapshot(self) -> str:
        """A cheap mark of the source's state: while it stays, nothing is read again."""
        ...

    def version(self) -> str:
        """The identity of the source's content; what was tokenised is kept by this name."""
        ...

    def batches(
        self, split: Split, version: str, start: Any = None
    ) -> Iterator[tuple[list[str], Any]]:
        """Yield documents, and the JSON value that as ``start`` goes on after them."""
        ...


def digest(*parts: bytes | str) -> str:
    """16 hexadecimal digits that stand for ``parts``."""
    state = blake2b(digest_size=8)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little") + data)
    return state.hexdigest()


def share(text: str) -> float:
    """A number in [0, 1) drawn by the text's own hash: equal texts, equal numbers."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest()) / 2**64


def by_share(split: Split, validation: float, test: float) -> Callable[[str], bool]:
    """The rule that keeps a split's documents, for these fractions of validation and test."""
    low, high = {
        "validation": (0.0, validation),
        "test": (validation, validation + test),
        "train": (validation + test, 1.0),
    }[split]
    return lambda text: low <= share(text) < high


def grouped(documents: Iterable[str]) -> Iterator[list[str]]:
    """Group documents into batches of about a mebicharacter; never reads ahead of a batch."""
    batch: list[str] = []
    characters = 0
    for text in documents:
        batch.append(text)
        characters += len(text)
        if characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
