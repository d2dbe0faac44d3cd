"""A corpus on disk: tokenised once, kept in the cache, found again by what went into it.

``CACHE/corpora/NAME-SETTINGS/`` holds ``source.json`` (the source's last known state) and a folder
for each version of its content, with ``manifest.json``, ``tokenizer.json`` and the shards.
"""

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tokenizers import Tokenizer

from residual_lab.config.data import TextDataConfig
from residual_lab.config.models import DecoderConfig
from residual_lab.config.schema import Config
from residual_lab.data import shards
from residual_lab.data.encode import Encoder
from residual_lab.data.hub import HubDataset
from residual_lab.data.local import python_source, text_files
from residual_lab.data.progress import TokenProgress
from residual_lab.data.shards import SplitWriter, Tokens, read_json, token_type, write_json
from residual_lab.data.source import SPLITS, Source, Split, digest
from residual_lab.data.tokenizer import (
    TokenizerFile,
    end_of_text,
    is_file,
    load_tokenizer,
    train_bpe,
    usable,
)
from residual_lab.errors import DataError

TOKENIZER = "tokenizer.json"
FORMAT = 1  # of the cache: another number leaves older folders alone
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """Three splits of tokens, their tokenizer, and a hash of both that goes into results."""

    fingerprint: str
    train: Tokens
    validation: Tokens
    test: Tokens
    tokenizer: Tokenizer
    end_of_text: int  # id of the token after each document
    folder: Path

    @property
    def tokenizer_file(self) -> TokenizerFile:
        return TokenizerFile(self.folder / TOKENIZER, self.tokenizer, self.end_of_text)

    @classmethod
    def open(cls, folder: Path) -> "Corpus | None":
        """The finished corpus in ``folder``; None where there is none, or a shard is damaged."""
        manifest = read_json(folder / "manifest.json")
        if manifest is None:
            return None
        dtype, splits = manifest["dtype"], {}
        for split in SPLITS:
            entry = manifest["splits"][split]
            paths = [folder / name for name in entry["shards"]]
            if not all(path.is_file() for path in paths):
                return None
            splits[split] = Tokens(paths, dtype)
            if len(splits[split]) != entry["tokens"]:
                return None
        tokenizer = usable(Tokenizer.from_file(str(folder / TOKENIZER)))
        end = manifest["end_of_text"]
        return cls(
            manifest["fingerprint"], **splits, tokenizer=tokenizer, end_of_text=end, folder=folder
        )


def prepare(config: Config) -> Corpus:
    """Tokenise the corpus of ``config.data`` if the cache lacks it, and open it.

    Depends on ``config.data``; for a corpus of the hub with ``data.train_tokens=null`` also on the
    budget. Several processes may call it at once: one works, the others wait. Raises
    :class:`DataError`.
    """
    data = _text(config)
    limits = token_limits(config)
    try:
        source = build_source(data)
        home = Path(str(data.cache_dir), "corpora", f"{data.name}-{settings_key(data, limits)}")
        home.mkdir(parents=True, exist_ok=True)
        version = _version(source, home)
        corpus = Corpus.open(home / version)
        if corpus is None:
            with _locked(home / "lock", data.name):
                corpus = Corpus.open(home / version)
                corpus = corpus or _build(config, source, home / version, version, limits)
    except OSError as error:
        raise DataError(
            f"data.cache_dir={data.cache_dir}: {error}: free some space or choose another folder"
        ) from None
    _check(corpus, config)
    return corpus


def _text(config: Config) -> TextDataConfig:
    assert isinstance(config.data, TextDataConfig)  # the configuration was checked
    return config.data


def build_source(data: TextDataConfig) -> Source:
    """The documents that ``data`` asks for."""
    fractions = data.validation_fraction, data.test_fraction
    if data.source == "python":
        return python_source(fractions)
    if data.source == "files":
        return text_files(Path(str(data.path)), data.text_field, fractions)
    return HubDataset(data)


def token_limits(config: Config) -> dict[Split, int | None]:
    """The most tokens that each split may have.

    A sequence has one token more than inputs, so a limit of N tokens stands for N targets. A
    corpus of the hub without ``data.train_tokens`` has as many as the budget trains on.
    """
    data = _text(config)
    train = data.train_tokens
    if train is None and data.source == "hub":
        train = config.tokens
    wanted: dict[Split, int | None] = {
        "train": train,
        "validation": data.validation_tokens,
        "test": data.test_tokens,
    }
    return {split: None if limit is None else limit + 1 for split, limit in wanted.items()}


def settings_key(data: TextDataConfig, limits: dict[Split, int | None]) -> str:
    """A hash of everything that chooses the tokens, except the source's own content."""
    keys = {"source", "repository", "revision", "subset", "validation_fraction", "test_fraction"}
    chosen: dict[str, Any] = data.model_dump(include=keys)
    if data.source != "python":
        chosen |= {"path": data.path, "text_field": data.text_field}
    if data.tokenizer == "bpe":
        chosen |= {"bpe": data.vocabulary}
    elif is_file(data.tokenizer) and Path(data.tokenizer).is_file():
        chosen |= {"tokenizer_file": digest(Path(data.tokenizer).read_bytes())}
    else:
        chosen |= {"tokenizer": data.tokenizer}
    return digest(json.dumps([FORMAT, chosen, limits], sort_keys=True))


def _version(source: Source, home: Path) -> str:
    """The source's version, read anew only when its cheap snapshot has changed."""
    snapshot = source.snapshot()
    known = read_json(home / "source.json")
    if known is not None and known["snapshot"] == snapshot:
        return str(known["version"])
    version = source.version()
    write_json(home / "source.json", {"snapshot": snapshot, "version": version})
    return version


def _locked(path: Path, name: str) -> FileLock:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
        lock.release()
    except Timeout:
        log.info("waiting for another process that is preparing %s", name)
    return lock


def _build(
    config: Config, source: Source, folder: Path, version: str, limits: dict[Split, int | None]
) -> Corpus:
    data = _text(config)
    folder.mkdir(exist_ok=True)
    tokenizer = _tokenizer(data, source, folder, version)
    size, end = tokenizer.get_vocab_size(), end_of_text(tokenizer, data.tokenizer)
    _check_vocabulary(size, config)
    dtype = token_type(size)
    splits = {}
    with Encoder(tokenizer, end, dtype, workers(data)) as encoder, TokenProgress() as bar:
        for split in SPLITS:
            writer = SplitWriter(folder, split, dtype, shards.SHARD_TOKENS)
            _write(writer, source, version, encoder, limits[split], bar)
            splits[split] = writer.summary()
    manifest = {
        "fingerprint": _fingerprint(folder, splits, dtype),
        "version": version,
        "data": data.model_dump(mode="json", exclude={"cache_dir", "workers"}),
        "dtype": dtype,
        "vocabulary": size,
        "end_of_text": end,
        "splits": splits,
    }
    write_json(folder / "manifest.json", manifest)
    corpus = Corpus.open(folder)
    assert corpus is not None
    return corpus


def _tokenizer(data: TextDataConfig, source: Source, folder: Path, version: str) -> Tokenizer:
    path = folder / TOKENIZER
    if not path.is_file():
        if data.tokenizer == "bpe":
            batches = source.batches("train", version)
            documents: Iterator[str] = chain.from_iterable(texts for texts, _ in batches)
            tokenizer = train_bpe(documents, data.vocabulary)
        else:
            tokenizer = load_tokenizer(data.tokenizer)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(usable(tokenizer).to_str(), encoding="utf-8")
        temporary.replace(path)
    return usable(Tokenizer.from_file(str(path)))


def _write(
    writer: SplitWriter,
    source: Source,
    version: str,
    encoder: Encoder,
    limit: int | None,
    bar: TokenProgress,
) -> None:
    bar.start(writer.split, writer.tokens, limit)
    if not writer.complete and (limit is None or writer.tokens < limit):
        batches = source.batches(writer.split, version, writer.position)
        for tokens, documents, position in encoder.encode(batches):
            room = None if limit is None else limit - writer.tokens
            writer.append(tokens[:room], documents, position)
            bar.update(writer.tokens)
            if writer.tokens == limit:
                break
    writer.finish()


def _fingerprint(folder: Path, splits: dict[Split, dict[str, Any]], dtype: str) -> str:
    """A hash of the tokenizer and of every token of every split."""
    state = blake2b(dtype.encode(), digest_size=8)
    state.update((folder / TOKENIZER).read_bytes())
    for split in SPLITS:
        state.update(f"{split} {splits[split]['tokens']}".encode())
        for name in splits[split]["shards"]:
            with (folder / name).open("rb") as shard:
                while block := shard.read(2**24):
                    state.update(block)
    return state.hexdigest()


def workers(data: TextDataConfig) -> int:
    """Processes that tokenise: ``data.workers``, or one for each core this process may use."""
    if data.workers is not None:
        return data.workers
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _check(corpus: Corpus, config: Config) -> None:
    """Refuse a corpus that the model or the sequence length does not fit."""
    _check_vocabulary(corpus.tokenizer.get_vocab_size(), config)
    length = config.data.sequence_length
    remedies = {
        "train": "give more text or raise data.train_tokens",
        "validation": "give more text or raise data.validation_fraction or data.validation_tokens",
        "test": "give more text or raise data.test_fraction or data.test_tokens",
    }
    for split in SPLITS:
        tokens: Tokens = getattr(corpus, split)
        if not len(tokens) and split != "train":
            key = f"{split}_fraction"
            raise DataError(
                f"data.{key}={getattr(config.data, key)}: no document of {config.data.name} fell "
                f"into the {split} split, it has 0 tokens: give more documents or raise data.{key}"
            )
        if not tokens.windows(length):
            raise DataError(
                f"data.sequence_length={length}: the {split} split of {config.data.name} has only "
                f"{len(tokens)} tokens, a sequence needs {length + 1}: shorten it, or "
                f"{remedies[split]}"
            )


def _check_vocabulary(size: int, config: Config) -> None:
    data = _text(config)
    assert isinstance(config.model, DecoderConfig)
    if size > config.model.vocabulary:
        raise DataError(
            f"model.vocabulary={config.model.vocabulary} is too small for "
            f"data.tokenizer={data.tokenizer}, which has {size} pieces: set data.vocabulary "
            "(and model.vocabulary where it differs) to that number or more"
        )
