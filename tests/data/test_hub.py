"""Corpora of the hub, with local folders of the same files in its place; no network."""

import gzip
import json
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from residual_lab.config import Config, compose
from residual_lab.data import prepare, source
from residual_lab.data.hub import HubDataset
from residual_lab.data.image_sources import load_images
from residual_lab.data.shards import SplitWriter
from residual_lab.data.source import SPLITS
from residual_lab.data.tokenizer import load_tokenizer, train_bpe
from residual_lab.errors import DataError

from .conftest import make_documents
from .test_corpus import CutOffError, texts

Compose = Callable[..., Config]
TRAIN, HELD_OUT, TEST = (make_documents(60, seed) for seed in (1, 2, 3))


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_CHARACTERS", 3000)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def write(path: Path, rows: Sequence[str], field: str = "text") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"url": str(i), field: text}) for i, text in enumerate(rows)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.fixture
def c4(tmp_path: Path) -> Path:
    """The layout of C4: a folder for the language, training in parts, one validation split."""
    for part in range(3):
        rows = TRAIN[part * 20 : part * 20 + 20]
        write(tmp_path / "c4" / "en" / f"c4-train.0000{part}-of-00003.json.gz", rows)
    write(tmp_path / "c4" / "en" / "c4-validation.00000-of-00001.json.gz", HELD_OUT)
    return tmp_path / "c4"


@pytest.fixture
def c4_config(composed: Compose, c4: Path, tmp_path: Path) -> Config:
    train_bpe(TRAIN, 320).save(str(tmp_path / "t.json"))
    tokenizer = f"data.tokenizer={tmp_path / 't.json'}"
    return composed("data=c4", f"data.path={c4}", tokenizer, "budget.tokens=576")


def test_one_held_out_split_is_dealt_out(composed: Compose, c4: Path) -> None:
    prepared = prepare(composed("data=c4", f"data.path={c4}", "data.tokenizer=bpe",
                                "data.train_tokens=1000000"))  # fmt: skip
    assert texts(prepared, "train") == TRAIN
    validation, test = texts(prepared, "validation"), texts(prepared, "test")
    assert sorted(validation + test) == sorted(HELD_OUT)
    assert min(len(validation), len(test)) > 15


def test_own_splits_are_used(composed: Compose, tmp_path: Path) -> None:
    for name, rows in {"train": TRAIN, "validation": HELD_OUT, "test": TEST}.items():
        write(tmp_path / "books" / f"{name}-00000-of-00001.json.gz", rows)
    prepared = prepare(composed("data=pg19", f"data.path={tmp_path / 'books'}",
                                "data.tokenizer=bpe", "data.train_tokens=1000000"))  # fmt: skip
    assert [texts(prepared, split) for split in SPLITS] == [TRAIN, HELD_OUT, TEST]


def test_only_a_train_split_is_divided(composed: Compose, tmp_path: Path) -> None:
    write(tmp_path / "web" / "part.json.gz", TRAIN + HELD_OUT)
    prepared = prepare(composed("data=openwebtext", f"data.path={tmp_path / 'web'}",
                                "data.tokenizer=bpe", "data.train_tokens=1000000"))  # fmt: skip
    found = [texts(prepared, split) for split in SPLITS]
    assert sorted(chain.from_iterable(found)) == sorted(TRAIN + HELD_OUT)
    assert all(len(part) > 5 for part in found)


def test_reads_no_more_than_the_budget(c4_config: Config, c4: Path) -> None:
    """The last training file cannot be read: it is never asked for."""
    (c4 / "en" / "c4-train.00002-of-00003.json.gz").write_bytes(gzip.compress(b"no JSON"))
    prepared = prepare(c4_config)
    assert len(prepared.train) == c4_config.tokens + 1
    assert TRAIN[0] == texts_until_end(prepared)


def texts_until_end(prepared: Any) -> str:
    ids = prepared.train.read(0, len(prepared.train)).tolist()
    first = ids[: ids.index(prepared.end_of_text)]
    return str(prepared.tokenizer.decode(first, skip_special_tokens=False))


def test_damaged_file_is_one_line(composed: Compose, c4: Path, c4_config: Config) -> None:
    (c4 / "en" / "c4-train.00000-of-00003.json.gz").write_bytes(gzip.compress(b"no JSON"))
    with pytest.raises(DataError, match=r"data.path=.*cannot be read") as error:
        prepare(c4_config)
    assert "\n" not in str(error.value)


def test_cut_off_stream_resumes(
    composed: Compose, c4: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("data=c4", f"data.path={c4}", "data.tokenizer=bpe", "data.train_tokens=1000000")
    whole = prepare(composed(*settings, f"data.cache_dir={tmp_path / 'whole'}"))
    save, count = SplitWriter._save, []

    def save_and_die(writer: SplitWriter) -> None:
        save(writer)
        count.append(1)
        if len(count) == 4:
            raise CutOffError

    with monkeypatch.context() as patch:
        patch.setattr(SplitWriter, "_save", save_and_die)
        with pytest.raises(CutOffError):
            prepare(composed(*settings))
    resumed = prepare(composed(*settings))
    assert resumed.fingerprint == whole.fingerprint
    assert texts(resumed, "train") == TRAIN


def test_missing_field(composed: Compose, c4: Path) -> None:
    config = composed("data=c4", f"data.path={c4}", "data.tokenizer=bpe", "data.text_field=body")
    with pytest.raises(DataError, match=r"data.text_field=body .* it has url, text"):
        prepare(config)


def test_empty_folder(composed: Compose, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"data.path=.* is empty"):
        prepare(composed("data=c4", f"data.path={tmp_path / 'none'}"))


@pytest.mark.parametrize("name", ["c4", "openwebtext", "lm1b", "pg19", "fineweb_edu"])
def test_offline_is_one_line(composed: Compose, name: str) -> None:
    config = composed(f"data={name}", "data.tokenizer=bpe")
    with pytest.raises(DataError, match="HF_HUB_OFFLINE") as error:
        prepare(config)
    assert f"data.repository={config.data.repository}" in str(error.value)
    assert "data.path=FOLDER" in str(error.value)
    assert "\n" not in str(error.value)


def test_unreachable_hub_is_one_line(composed: Compose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.HfApi, "__init__", refused)
    with pytest.raises(DataError, match=r"cannot be read from the hub .*check the connection"):
        prepare(composed("data=c4", "data.tokenizer=bpe"))


def refused(self: Any) -> None:
    """An address on this machine where nobody listens."""
    self.endpoint, self.token = "http://127.0.0.1:9", None
    self.library_name = self.library_version = self.user_agent = None
    self.headers = {}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.GatedRepoError, "is gated: accept its terms"),
        (errors.RepositoryNotFoundError, "is not on the hub, or private"),
        (errors.RevisionNotFoundError, "has no such data.revision"),
        (TimeoutError, "cannot be read from the hub"),
    ],
)
def test_refusals_of_the_hub(
    composed: Compose, monkeypatch: pytest.MonkeyPatch, kind: type[Exception], message: str
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", refuse)
    with pytest.raises(DataError, match=message) as error:
        prepare(composed("data=fineweb_edu", "data.tokenizer=bpe"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("Dataset 'a/b' is a gated dataset on the Hub. You must", "is gated: accept its terms"),
        ("Revision 'c' doesn't exist for dataset 'a/b' on the Hub.", "has no such data.revision"),
        ("Dataset 'a/b' doesn't exist on the Hub or cannot", "is not on the hub, or private"),
    ],
)
def test_refusals_that_datasets_says_in_its_own_words(
    monkeypatch: pytest.MonkeyPatch, said: str, message: str
) -> None:
    """Images are fetched by `datasets`, whose class of error is one for all three."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise datasets.exceptions.DatasetNotFoundError(said)

    monkeypatch.setattr(datasets, "load_dataset_builder", refuse)
    with pytest.raises(DataError, match=message) as error:
        load_images(compose(["model=vit_s16", "data=imagenet", "optim=big_vision"]).data)
    assert str(error.value).endswith("data.path=FOLDER") != said.startswith("Revision")
    assert "class folders" in str(error.value) or said.startswith("Revision")


def test_a_tokenizer_that_cannot_be_fetched_is_replaced_by_a_file_or_bpe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "__init__", refused)
    with pytest.raises(DataError, match=r"data\.tokenizer=FILE\.json; or take data\.tokenizer=bpe"):
        load_tokenizer("some/one")


def test_prepared_corpus_needs_no_hub(
    composed: Compose, c4: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is asked for once; later runs, and resumed preparations, stay at it."""
    config = composed("data=c4", "data.tokenizer=bpe")
    local = HubDataset(composed("data=c4", f"data.path={c4}").data)
    asked = []

    def answer(self: Any, *args: object, **kwargs: object) -> SimpleNamespace:
        asked.append(kwargs["revision"])
        return SimpleNamespace(sha="0123abcd")

    loaded = []

    def load(self: HubDataset, split: Any, version: str) -> Any:
        loaded.append(version)
        return HubDataset._original_load(local, split, version)  # type: ignore[attr-defined]

    monkeypatch.setattr(HubDataset, "_original_load", HubDataset._load, raising=False)
    monkeypatch.setattr(HubDataset, "_load", load)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", answer)
    first = prepare(config)
    assert set(loaded) == {"0123abcd"}
    loaded.clear()
    assert prepare(config).fingerprint == first.fingerprint
    assert asked == [None]
    assert not loaded
