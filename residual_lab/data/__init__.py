"""Corpora, tokenizers and packing: from text to batches of token sequences.

Only :class:`TextDataModule` needs torch; it is imported when asked for, so that the processes
that tokenise start quickly.
"""

from typing import TYPE_CHECKING, Any

from residual_lab.data.corpus import Corpus, prepare

if TYPE_CHECKING:
    from residual_lab.data.module import TextDataModule

__all__ = ["Corpus", "TextDataModule", "prepare"]


def __getattr__(name: str) -> Any:
    if name == "TextDataModule":
        from residual_lab.data.module import TextDataModule

        return TextDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
