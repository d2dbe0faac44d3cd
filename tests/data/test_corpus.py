"""Preparing a corpus: what is on disk equals the source, once, whatever happened on the way."""

import json
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from residual_lab.config import Config
from residual_lab.data import Corpus, corpus, prepare, shards, source
from residual_lab.data.encode import Encoder
from residual_lab.data.local import LocalFiles, python_source
from residual_lab.data.shards import SplitWriter, Tokens
from residual_lab.data.source import SPLITS
from residual_lab.errors import DataError

from .conftest import make_documents

Compose = Callable[..., Config]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many batches even of a small corpus."""
    monkeypatch.setattr(source, "BATCH_CHARACTERS", 3000)


def texts(prepared: Corpus, split: str) -> list[str]:
    """The documents of a split, decoded back from its tokens."""
    tokens: Tokens = getattr(prepared, split)
    ids = tokens.read(0, len(tokens)).tolist()
    assert ids[-1] == prepared.end_of_text
    found: list[list[int]] = [[]]
    for number in ids[:-1]:
        found.append([]) if number == prepared.end_of_text else found[-1].append(number)
    return [prepared.tokenizer.decode(part, skip_special_tokens=False) for part in found]


def test_decoded_corpus_equals_the_source(config: Config, documents: list[str]) -> None:
    prepared = prepare(config)
    found = {split: texts(prepared, split) for split in SPLITS}
    assert Counter(chain.from_iterable(found.values())) == Counter(documents)
    assert all(len(found[split]) > 5 for split in SPLITS)
    assert len(found["train"]) > 80


def test_equal_documents_are_in_one_split(
    composed: Compose, corpus_folder: Path, documents: list[str]
) -> None:
    for number, text in enumerate(documents):
        (corpus_folder / f"copy{number}.txt").write_bytes(text.encode())
    prepared = prepare(composed(f"data.path={corpus_folder}"))
    sets = [set(texts(prepared, split)) for split in SPLITS]
    assert sum(map(len, sets)) == len(set.union(*sets)) == len(documents)


def test_first_tokens_are_a_sample_of_all_folders(config: Config) -> None:
    """Names are read in hashed order: a limit does not cut off the last folders."""
    names = LocalFiles(Path("/"), [f"{i:03d}" for i in range(1000)], None, (0.1, 0.1)).names
    assert 400 < np.mean([int(name) for name in names[:100]]) < 600


def test_workers_change_nothing(composed: Compose, corpus_folder: Path, tmp_path: Path) -> None:
    one = prepare(composed(f"data.path={corpus_folder}"))
    two = prepare(
        composed(f"data.path={corpus_folder}", f"data.cache_dir={tmp_path / 'b'}", "data.workers=2")
    )
    assert one.folder != two.folder
    assert one.fingerprint == two.fingerprint


def test_shards_change_nothing(
    composed: Compose, corpus_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = prepare(composed(f"data.path={corpus_folder}"))
    monkeypatch.setattr(shards, "SHARD_TOKENS", 1000)
    many = prepare(composed(f"data.path={corpus_folder}", f"data.cache_dir={tmp_path / 'b'}"))
    assert len(many.train.paths) > 5
    whole = one.train.read(0, len(one.train))
    assert len(many.train) == len(whole)
    draw = random.Random(0)
    for _ in range(200):
        start = draw.randrange(len(whole))
        stop = draw.randint(start, min(len(whole), start + 2500))
        if stop > start:
            assert np.array_equal(many.train.read(start, stop), whole[start:stop])
    last = many.train.windows(16) - 1
    assert np.array_equal(many.train.window(last, 16), whole[last * 16 : last * 16 + 17])
    assert len(whole) - (last * 16 + 17) < 16  # all but a tail shorter than a sequence


def forbidden(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("must not be called")


def test_prepared_once(
    config: Config, composed: Compose, corpus_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(config)
    monkeypatch.setattr(corpus, "_build", forbidden)
    monkeypatch.setattr(LocalFiles, "_bytes", forbidden)
    again = prepare(config)
    other = prepare(
        composed(
            f"data.path={corpus_folder}", "model.layers=2", "optim.lr=1", "seed=5",
            "data.workers=2", "data.sequence_length=32", "budget.steps=3", "budget.tokens=null",
        )
    )  # fmt: skip
    assert first.fingerprint == again.fingerprint == other.fingerprint


def test_touched_source_is_not_tokenised_again(
    config: Config, corpus_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(config)
    for path in corpus_folder.rglob("*.txt"):
        os.utime(path, (1, 1))
    monkeypatch.setattr(corpus, "_build", forbidden)
    assert prepare(config).folder == first.folder


@pytest.mark.parametrize("change", ["edit", "add", "remove"])
def test_changed_source_is_noticed(config: Config, corpus_folder: Path, change: str) -> None:
    first = prepare(config)
    path = corpus_folder / "001.txt"
    if change == "edit":
        path.write_bytes(path.read_bytes().replace(b"# 1", b"# 9"))
    elif change == "add":
        (corpus_folder / "new.txt").write_text("a new text " * 50)
    else:
        path.unlink()
    second = prepare(config)
    assert second.fingerprint != first.fingerprint
    written = sum(map(Counter, (texts(second, split) for split in SPLITS)), Counter())
    files = [file.read_bytes().decode() for file in corpus_folder.rglob("*.txt")]
    assert written == Counter(files)


class CutOffError(Exception):
    """Stands for the death of the process."""


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("recorded", [True, False])
def test_cut_off_preparation_resumes(
    composed: Compose,
    corpus_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    split: str,
    recorded: bool,
) -> None:
    """Cut off after, or in the middle of, the second append of a split."""
    whole = prepare(composed(f"data.path={corpus_folder}", f"data.cache_dir={tmp_path / 'whole'}"))
    config = composed(f"data.path={corpus_folder}")
    save = SplitWriter._save
    appended: Counter[str] = Counter()

    def save_and_die(writer: SplitWriter) -> None:
        appended[writer.split] += 1
        dies = writer.split == split and appended[split] == 2
        if recorded or not dies:
            save(writer)
        if dies:
            raise CutOffError

    with monkeypatch.context() as patch:
        patch.setattr(SplitWriter, "_save", save_and_die)
        with pytest.raises(CutOffError):
            prepare(config)
    encoded = []
    encode = Encoder.encode

    def counting(self: Encoder, batches: Any) -> Iterator[Any]:
        for tokens, documents, position in encode(self, batches):
            encoded.append(documents)
            yield tokens, documents, position

    monkeypatch.setattr(Encoder, "encode", counting)
    assert prepare(config).fingerprint == whole.fingerprint
    assert sum(encoded) < 150  # what was recorded is not tokenised again


def test_damaged_corpus_is_made_again(config: Config) -> None:
    first = prepare(config)
    shard = first.train.paths[0]
    os.truncate(shard, shard.stat().st_size // 2)
    assert prepare(config).fingerprint == first.fingerprint
    shard.unlink()
    assert prepare(config).fingerprint == first.fingerprint


def _prepare_in_process(plain: dict[str, Any], results: Any) -> None:
    built = []
    build = corpus._build
    corpus._build = lambda *arguments: built.append(1) or build(*arguments)  # type: ignore[func-returns-value]
    results.put((prepare(Config.model_validate(plain)).fingerprint, len(built)))


def test_two_processes_at_once(config: Config) -> None:
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    plain = config.model_dump(mode="json")
    processes = [
        context.Process(target=_prepare_in_process, args=(plain, results)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert len({fingerprint for fingerprint, _ in found}) == 1
    assert sum(built for _, built in found) == 1


def test_limits_take_the_first_tokens(
    composed: Compose, corpus_folder: Path, tmp_path: Path
) -> None:
    path = f"data.path={corpus_folder}"
    whole = prepare(composed(path))
    part = prepare(
        composed(path, "data.train_tokens=1600", "data.validation_tokens=64", "data.test_tokens=16")
    )
    for split, targets in {"train": 1600, "validation": 64, "test": 16}.items():
        tokens, all_tokens = getattr(part, split), getattr(whole, split)
        assert tokens.windows(16) * 16 == targets
        assert np.array_equal(tokens.read(0, len(tokens)), all_tokens.read(0, len(tokens)))
    assert part.fingerprint != whole.fingerprint


def test_python_source_is_the_library_without_packages(tmp_path: Path) -> None:
    library = tmp_path / "lib"
    written = make_documents(30)
    for number, text in enumerate(written):
        folder = library / ("test" if number % 2 else "json")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.py").write_bytes(text.encode())
    for name in ("site-packages/other.py", "json/__pycache__/x.py", "README.txt"):
        (library / name).parent.mkdir(exist_ok=True)
        (library / name).write_text("not part of it")
    (library / "json" / "__init__.py").write_text("")
    read = python_source((0.1, 0.1), library)
    found = [text for split in SPLITS for batch, _ in read.batches(split, "") for text in batch]
    assert sorted(found) == sorted(written)


def test_pipes_are_not_read(config: Config, corpus_folder: Path) -> None:
    os.mkfifo(corpus_folder / "pipe.txt")  # reading it would wait for a writer for ever
    assert len(prepare(config).train)


def test_missing_target_of_a_link(config: Config, corpus_folder: Path) -> None:
    (corpus_folder / "link.txt").symlink_to(corpus_folder / "gone.txt")
    with pytest.raises(DataError, match=r"link\.txt cannot be read: No such file"):
        prepare(config)


def test_this_interpreter_has_a_corpus() -> None:
    names = python_source((0.1, 0.1)).names
    assert {"json/__init__.py", "argparse.py"} <= set(names)
    assert not any("site-packages" in name for name in names)


def test_manifest_says_what_is_there(config: Config) -> None:
    prepared = prepare(config)
    manifest = json.loads((prepared.folder / "manifest.json").read_text())
    assert manifest["fingerprint"] == prepared.fingerprint
    for split in SPLITS:
        assert manifest["splits"][split]["tokens"] == len(getattr(prepared, split))
    assert sum(manifest["splits"][split]["documents"] for split in SPLITS) == 150
