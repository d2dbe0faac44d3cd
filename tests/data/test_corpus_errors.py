"""A corpus that cannot be: one error that says what to do, nothing half-written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from residual_lab.config import Config
from residual_lab.data import prepare
from residual_lab.errors import DataError

Compose = Callable[..., Config]


def test_empty_corpora(composed: Compose, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text.md").write_text("no format that is read")
    with pytest.raises(DataError, match=r"holds none of \.txt, \.jsonl"):
        prepare(composed(f"data.path={folder}"))
    (folder / "a.txt").write_text(" \n")
    with pytest.raises(DataError, match="the train split of text has only 0 tokens") as error:
        prepare(composed(f"data.path={folder}"))
    assert "\n" not in str(error.value)
    (folder / "b.txt").write_text("")
    with pytest.raises(DataError, match=r"b\.txt is empty"):
        prepare(composed(f"data.path={folder}"))


def test_too_few_documents_for_a_split(composed: Compose, tmp_path: Path) -> None:
    """A shorter sequence would not help."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        (folder / f"{number}.txt").write_text(f"all of it is in document {number} " * 40)
    tiny = "data.validation_fraction=1e-6"
    remedy = "it has 0 tokens: give more documents or raise data.validation_fraction"
    with pytest.raises(DataError) as error:
        prepare(composed(f"data.path={folder}", tiny))
    assert str(error.value).startswith("data.validation_fraction=1e-06: ")
    assert str(error.value).endswith(remedy)


def test_corpus_smaller_than_a_sequence(composed: Compose, corpus_folder: Path) -> None:
    size = len(prepare(composed(f"data.path={corpus_folder}")).validation)
    config = composed(
        f"data.path={corpus_folder}", f"data.sequence_length={size}", f"budget.batch_tokens={size}",
        "budget.tokens=null", "budget.steps=1",
    )  # fmt: skip
    with pytest.raises(DataError, match=f"validation split of text has only {size} tokens"):
        prepare(config)


def test_model_with_too_few_tokens(composed: Compose, corpus_folder: Path) -> None:
    config = composed(f"data.path={corpus_folder}")
    small = config.model.model_copy(update={"vocabulary": 300})
    with pytest.raises(DataError, match=r"model.vocabulary=300 .* has 320 pieces") as error:
        prepare(config.model_copy(update={"model": small}))
    assert "\n" not in str(error.value)


def test_unwritable_cache(composed: Compose, corpus_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"data.cache_dir=.*choose another folder"):
        prepare(composed(f"data.path={corpus_folder}", f"data.cache_dir={tmp_path / 'file'}"))
