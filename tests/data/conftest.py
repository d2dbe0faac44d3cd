"""A small corpus of known documents, and configurations that read it."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from residual_lab.config import Config, compose

os.environ["HF_HUB_OFFLINE"] = "1"  # no test asks the network

Compose = Callable[..., Config]
WORDS = ["def", "return α", "naïve", "日本", "stream", "; (", ")", "\t", "<|endoftext|>", "x_BTD"]


def make_documents(count: int, seed: int = 0) -> list[str]:
    """Different texts, with characters of one to three bytes and the end token's own name."""
    draw = random.Random(seed)
    lines = [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(count * 5)]
    return [f"# {i}\r\n" + "\n".join(lines[i * 5 : i * 5 + 5]) + "\n" for i in range(count)]


@pytest.fixture(scope="session")
def documents() -> list[str]:
    return make_documents(150)


@pytest.fixture
def corpus_folder(tmp_path: Path, documents: list[str]) -> Path:
    """The documents, a .txt file each, some in a folder below."""
    root = tmp_path / "corpus"
    (root / "more").mkdir(parents=True)
    for number, text in enumerate(documents):
        folder = root / "more" if number % 3 == 0 else root
        (folder / f"{number:03d}.txt").write_bytes(text.encode())
    return root


@pytest.fixture
def composed(tmp_path: Path) -> Compose:
    """Compose with a cache of the test's own and sizes that fit a small corpus."""

    def compose_small(*overrides: str) -> Config:
        return compose(
            [
                "data=text",
                f"data.cache_dir={tmp_path / 'cache'}",
                "data.vocabulary=320",
                "data.sequence_length=16",
                "data.workers=1",
                "data.validation_fraction=0.15",
                "data.test_fraction=0.15",
                "budget.batch_tokens=192",
                "budget.tokens=1920",
                *overrides,
            ]
        )

    return compose_small


@pytest.fixture
def config(composed: Compose, corpus_folder: Path) -> Config:
    return composed(f"data.path={corpus_folder}")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A folder of class folders: five ants and bees each to train on, two to test on."""
    Image = pytest.importorskip("PIL.Image")
    random = np.random.default_rng(0)
    for split, count in (("train", 5), ("val", 2)):
        for name in ("ant", "bee"):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                size = (20 + number, 30, 3)
                image = Image.fromarray(random.integers(0, 256, size, np.uint8))
                image.save(tmp_path / split / name / f"{number}.png")
    return tmp_path
