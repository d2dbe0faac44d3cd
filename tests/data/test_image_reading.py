"""How images are cut, by what they are read and changed, and what is said where that fails."""

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from residual_lab.costs.estimate import estimate
from residual_lab.data import augmentation, build_data_module, fingerprint
from residual_lab.data.images import Pixels, centre, load
from residual_lab.errors import DataError

from .pictures import FOLDERS, configuration, corpus

NOISE = np.random.default_rng(0)


def cut(picture: Any, *overrides: str) -> Pixels:
    data = configuration(*FOLDERS, "data.repository=x", *overrides).data
    return centre(picture, data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("height", "width", "top", "left"),
    [(20, 27, 2, 6), (25, 20, 4, 2), (20, 29, 2, 6)],  # 5.5, 4.5 and 6.5: to the even one
)
def test_the_centre_of_an_image(height: int, width: int, top: int, left: int) -> None:
    """As torchvision.transforms.CenterCrop, of an image that needs no scaling."""
    pixels = NOISE.integers(0, 256, (height, width, 3), np.uint8)
    found = cut(Image.fromarray(pixels), "data.resize=20")
    assert np.array_equal(found, pixels[top : top + 16, left : left + 16])


@pytest.mark.parametrize("upright", [False, True])
def test_the_longer_side_is_rounded_down(upright: bool) -> None:
    """As torchvision.transforms.Resize: 49 · 20 / 30 = 32.67 pixels are 32."""
    height, width = (49, 30) if upright else (30, 49)
    picture = Image.fromarray(NOISE.integers(0, 256, (height, width, 3), np.uint8))
    size, (left, top) = ((20, 32), (2, 8)) if upright else ((32, 20), (8, 2))
    whole = np.asarray(picture.resize(size, resample=Image.Resampling.BILINEAR))
    found = cut(picture, "data.resize=20")
    assert np.array_equal(found, whole[top : top + 16, left : left + 16])


@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_with_a_palette_is_scaled_as_one_without(channels: int) -> None:
    rows, columns = np.mgrid[:40, :60]
    colours = np.stack([4 * columns, 6 * rows, 2 * rows + 2 * columns], -1).astype(np.uint8)
    palette = Image.fromarray(colours).quantize(64)
    overrides = ["data.resize=20"]
    if channels == 1:
        overrides += ["data.channels=1", "data.mean=[0.5]", "data.std=[0.2]"]
    found = cut(palette, *overrides)
    assert found.shape == (16, 16, channels)
    assert np.array_equal(found, cut(palette.convert("RGB" if channels == 3 else "L"), *overrides))


def small(folders: Path, *overrides: str) -> tuple[str, ...]:
    place = (f"data.path={folders}", "data.resize=20", "data.workers=0")
    return (*FOLDERS, *place, "data.validation_images=3", *overrides)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_is_no_image_is_said_in_one_line(folders: Path, workers: int) -> None:
    """Also by a process that reads, in training and in evaluation."""
    for path in folders.rglob("*.png"):
        path.write_bytes(b"no image")
    module = build_data_module(configuration(*small(folders, f"data.workers={workers}")))
    for loader in (module.train_dataloader(), module.test_dataloader()):
        with pytest.raises(DataError, match=r"\.png: cannot be read as an image") as refused:
            next(iter(loader))
        (line,) = refused.value.problems
        assert "\n" not in line and line.startswith(str(folders))


class Training:
    """A trainer that no process can be given."""

    global_rank, world_size = 1, 2

    def __reduce__(self) -> NoReturn:
        raise TypeError("a trainer")


def test_processes_that_read_can_be_spawned(folders: Path) -> None:
    """What they are given can be pickled, and reads the same part."""
    module = build_data_module(configuration(*small(folders, "data.flip=true")))
    module.trainer = Training()  # type: ignore[assignment]
    for loader in (module.train_dataloader(), module.test_dataloader()):
        again = pickle.loads(pickle.dumps(loader.dataset))
        images, labels = zip(*(next(iter(loader)), first(again)), strict=True)
        assert torch.equal(*images) and torch.equal(*labels)


def first(dataset: Any) -> Any:
    iterator: Iterator[Any] = iter(dataset)
    return next(iterator)


def test_what_is_missing_is_said_when_the_data_are_made_ready(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by the configuration, nor at the first image; and only where it is needed."""
    with monkeypatch.context() as patch:
        for name in ("PIL", "kornia", "kornia.augmentation.auto"):
            patch.setitem(sys.modules, name, None)
        augmentation._randaugment.cache_clear()
        load.cache_clear()
        config = configuration(*small(folders, "data.randaugment=2"))
        assert estimate(config).parameters
        with pytest.raises(DataError, match=r"by Pillow, which is missing: pip install"):
            fingerprint(config)
        assert fingerprint(configuration())  # digits, as they are
        with pytest.raises(DataError, match="by Pillow"):
            fingerprint(configuration("data.crop=random_resized"))
        with pytest.raises(DataError, match=r"by kornia, which is missing: pip install"):
            build_data_module(config).setup("fit")
    assert fingerprint(configuration(*small(folders)))


def test_the_commit_of_the_hub_is_in_the_fingerprint(
    folders: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read through the hub's own client, from a folder in the hub's place."""
    builder, fingerprints = datasets.load_dataset_builder, []
    cache = str(tmp_path_factory.mktemp("cache"))
    for commit in ("one", "other", "one"):

        def at_commit(name: str, revision: str | None, commit: str = commit) -> Any:
            made = builder(name, revision=revision, cache_dir=cache)
            made.hash = commit
            return made

        monkeypatch.setattr(datasets, "load_dataset_builder", at_commit)
        found = corpus(*FOLDERS, f"data.repository={folders}", "data.validation_images=3")
        fingerprints.append(found.fingerprint)
    assert (len(found.train), len(found.test)) == (7, 4)
    assert found.test.labels.tolist() == [0, 0, 1, 1]
    assert found.test.pictures[0].size == (30, 20)
    assert fingerprints[0] == fingerprints[2] != fingerprints[1]
