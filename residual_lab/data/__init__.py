"""Corpora, tokenizers and packing, from text to batches of tokens; images; and synthetic data.

Torch is imported when a data module is asked for, so that the processes that tokenise start
quickly.
"""

from typing import TYPE_CHECKING, Any

from residual_lab.config.data import ImageDataConfig, LinearMapConfig
from residual_lab.config.schema import Config
from residual_lab.data.corpus import Corpus, prepare

if TYPE_CHECKING:
    from residual_lab.data.module import DataModule, TextDataModule

__all__ = ["Corpus", "TextDataModule", "build_data_module", "fingerprint", "prepare"]


def fingerprint(config: Config) -> str:
    """Make the data of ``config`` ready, and return a hash of it that goes into results.

    Raises :class:`~residual_lab.errors.DataError`.
    """
    if isinstance(config.data, LinearMapConfig):
        from residual_lab.data.linear_map import LinearMap

        return LinearMap.of(config.data).fingerprint
    if isinstance(config.data, ImageDataConfig):
        from residual_lab.data.images import load

        return load(config.data).fingerprint
    return prepare(config).fingerprint


def build_data_module(config: Config) -> "DataModule":
    """The batches of ``config.data`` for Lightning."""
    if isinstance(config.data, LinearMapConfig):
        from residual_lab.data.linear_map import LinearMapDataModule

        return LinearMapDataModule(config)
    if isinstance(config.data, ImageDataConfig):
        from residual_lab.data.image_module import ImageDataModule

        return ImageDataModule(config)
    from residual_lab.data.module import TextDataModule

    return TextDataModule(config)


def __getattr__(name: str) -> Any:
    if name == "TextDataModule":
        from residual_lab.data.module import TextDataModule

        return TextDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
