"""Tokenizers: trained the same everywhere, read from any file, refused in one line."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from residual_lab.config import Config
from residual_lab.data import prepare
from residual_lab.data.tokenizer import train_bpe
from residual_lab.errors import DataError

from .conftest import make_documents

Compose = Callable[..., Config]


def test_training_does_not_depend_on_threads() -> None:
    code = (
        "from tests.data.conftest import make_documents\n"
        "from residual_lab.data.tokenizer import train_bpe\n"
        "print(train_bpe(make_documents(300), 500).to_str())"
    )
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "7"}
    other = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert train_bpe(make_documents(300), 500).to_str() == other.stdout.strip()


def word_tokenizer(end: str | None) -> Tokenizer:
    """Words by number; as some published tokenizers do, it pads and truncates."""
    words = ["[UNK]", "def", "return", "x"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.enable_padding(pad_id=0, length=64)
    tokenizer.enable_truncation(2)
    if end:
        tokenizer.add_special_tokens([end])
    return tokenizer


@pytest.mark.parametrize("end", ["</s>", "<|endoftext|>", "[SEP]"])
def test_tokenizer_file(composed: Compose, tmp_path: Path, end: str) -> None:
    word_tokenizer(end).save(str(tmp_path / "words.json"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}.txt").write_text("def x " * (number + 1) + f"{end} return")
    prepared = prepare(composed(f"data.path={folder}", f"data.tokenizer={tmp_path / 'words.json'}"))
    ids = prepared.train.read(0, len(prepared.train)).tolist()
    documents = " ".join(map(str, ids)).split("4")[:-1]
    assert prepared.end_of_text == 4
    for document in documents:  # the end token's name in a text is text: not id 4, but unknown
        numbers = [int(number) for number in document.split()]
        pairs = (len(numbers) - 2) // 2
        assert numbers == [1, 3] * pairs + [0, 2]


def test_tokenizer_file_that_changes_is_noticed(
    composed: Compose, corpus_folder: Path, tmp_path: Path
) -> None:
    config = composed(f"data.path={corpus_folder}", f"data.tokenizer={tmp_path / 't.json'}")
    train_bpe(make_documents(50), 300).save(str(tmp_path / "t.json"))
    first = prepare(config)
    train_bpe(make_documents(50), 310).save(str(tmp_path / "t.json"))
    assert prepare(config).tokenizer.get_vocab_size() == 310
    assert prepare(config).fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"t\.json does not exist"),
        ("{}", "is no tokenizers file"),
        ("no end", "has no end-of-text token: add one of"),
    ],
)
def test_bad_tokenizer_files(
    composed: Compose, corpus_folder: Path, tmp_path: Path, content: str | None, message: str
) -> None:
    if content == "no end":
        word_tokenizer(None).save(str(tmp_path / "t.json"))
    elif content:
        (tmp_path / "t.json").write_text(content)
    config = composed(f"data.path={corpus_folder}", f"data.tokenizer={tmp_path / 't.json'}")
    with pytest.raises(DataError, match=message) as error:
        prepare(config)
    assert "\n" not in str(error.value)


def test_named_tokenizer_without_a_hub(composed: Compose, corpus_folder: Path) -> None:
    config = composed(f"data.path={corpus_folder}", "data.tokenizer=no-such-owner/no-such-name")
    with pytest.raises(DataError, match=r"data.tokenizer=no-such-owner/no-such-name") as error:
        prepare(config)
    assert "\n" not in str(error.value)
