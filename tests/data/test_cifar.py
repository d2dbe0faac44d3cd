"""CIFAR's archives, and what becomes of arrays of another number of channels."""

import io
import pickle
import re
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from residual_lab.data.images import ImageCorpus
from residual_lab.errors import DataError

from .pictures import corpus

Batches = dict[str, tuple[np.ndarray, Mapping[str, list[int]]]]
KEYS = {"fine_label": 100, "coarse_label": 20}
TEN, HUNDRED = "cifar-10-python.tar.gz", "cifar-100-python.tar.gz"
GREY = ("data.channels=1", "data.mean=[0.5]", "data.std=[0.2]")


def made(names: list[str], labels: Mapping[str, int]) -> Batches:
    """Six images a file, with each kind of label."""
    random = np.random.default_rng(0)
    return {
        name: (
            random.integers(0, 256, (6, 3072), np.uint8),
            {key: random.integers(0, classes, 6).tolist() for key, classes in labels.items()},
        )
        for name in names
    }


def cifar10() -> Batches:
    return made([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"], {"label": 10})


def cifar100() -> Batches:
    return made(["train", "test"], KEYS)


def in_python(pixels: np.ndarray, labels: Mapping[str, list[int]]) -> bytes:
    named = {f"{key}s".encode(): values for key, values in labels.items()}
    return pickle.dumps({b"data": pixels, **named}, protocol=2)


def in_binary(pixels: np.ndarray, labels: Mapping[str, list[int]]) -> bytes:
    """An image after its labels, a byte each; of CIFAR-100 the coarse one comes first."""
    columns = [labels[key] for key in sorted(labels)]
    rows = zip(*columns, pixels, strict=True)
    return b"".join(bytes(row[:-1]) + row[-1].tobytes() for row in rows)


def pack(path: Path, batches: Batches, write: Callable[..., bytes], suffix: str = "") -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, batch in batches.items():
            entry, content = tarfile.TarInfo(f"{path.stem}/{name}{suffix}"), write(*batch)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def unpacked(folder: Path, batches: Batches, write: Callable[..., bytes], suffix: str = "") -> None:
    for name, batch in batches.items():
        (folder / f"{name}{suffix}").write_bytes(write(*batch))


def read(name: str, path: Path, *overrides: str) -> ImageCorpus:
    count = 10 if name == "cifar10" else 2
    place = (f"data.path={path}", f"data.validation_images={count}")
    return corpus(f"data={name}", *place, *overrides)


FORMS = pytest.mark.parametrize(("write", "suffix"), [(in_python, ""), (in_binary, ".bin")])


@FORMS
@pytest.mark.parametrize("packed", [True, False])
def test_cifar_is_read_from_both_archives_and_from_their_folders(
    tmp_path: Path, write: Callable[..., bytes], suffix: str, packed: bool
) -> None:
    batches = cifar10()
    if packed:
        pack(tmp_path / "cifar-10.tar.gz", batches, write, suffix)
    else:
        unpacked(tmp_path, batches, write, suffix)
    found = read("cifar10", tmp_path)
    assert [len(p) for p in (found.train, found.validation, found.test)] == [20, 10, 6]
    pixels, labels = batches["test_batch"]
    assert np.array_equal(found.test.labels, labels["label"])
    # the first 1024 bytes are red, row by row
    assert np.array_equal(
        np.asarray(found.test.pictures)[2, 3, 4], pixels[2].reshape(3, 32, 32)[:, 3, 4]
    )
    held = {p.tobytes() for p in np.asarray(found.validation.pictures)}
    kept = {p.tobytes() for p in np.asarray(found.train.pictures)}
    assert len(held | kept) == 30


@FORMS
@pytest.mark.parametrize("key", KEYS)
def test_cifar_100_has_fine_and_coarse_labels(
    tmp_path: Path, write: Callable[..., bytes], suffix: str, key: str
) -> None:
    batches = cifar100()
    unpacked(tmp_path, batches, write, suffix)
    found = read("cifar100", tmp_path, f"data.label_field={key}", f"data.classes={KEYS[key]}")
    pixels, labels = batches["test"]
    assert found.test.labels.tolist() == labels[key]
    assert np.array_equal(
        np.asarray(found.test.pictures)[1, 5, 7], pixels[1].reshape(3, 32, 32)[:, 5, 7]
    )
    by_image = dict(zip(map(bytes, batches["train"][0]), batches["train"][1][key], strict=True))
    for part, size in ((found.train, 4), (found.validation, 2)):
        rows = np.asarray(part.pictures).transpose(0, 3, 1, 2).reshape(size, 3072)
        assert part.labels.tolist() == [by_image[bytes(row)] for row in rows]


def test_a_folder_with_both_archives_has_both_sets(tmp_path: Path) -> None:
    pack(tmp_path / TEN, cifar10(), in_python)
    pack(tmp_path / HUNDRED, cifar100(), in_python)
    ten, hundred = cifar10()["test_batch"][1], cifar100()["test"][1]
    assert read("cifar10", tmp_path).test.labels.tolist() == ten["label"]
    assert read("cifar100", tmp_path).test.labels.tolist() == hundred["fine_label"]
    unpacked(tmp_path, cifar100(), in_python)  # the other set beside the archive
    assert read("cifar10", tmp_path).test.labels.tolist() == ten["label"]
    with pytest.raises(DataError, match=rf"{re.escape(HUNDRED)}: has no data_batch_1 or"):
        read("cifar10", tmp_path / HUNDRED)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("executed",))


def test_a_file_that_would_execute_code_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpacked(tmp_path, cifar10(), in_python)
    (tmp_path / "test_batch").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(DataError, match="test_batch is no file of cifar10"):
        read("cifar10", tmp_path)
    assert "executed" not in capsys.readouterr().out


def test_arrays_become_grey_as_pillow_makes_them(tmp_path: Path) -> None:
    unpacked(tmp_path, cifar10(), in_binary, ".bin")
    colours = np.asarray(read("cifar10", tmp_path).test.pictures)
    found = read("cifar10", tmp_path, *GREY)
    grey = np.asarray(found.test.pictures)
    assert grey.shape == (6, 32, 32, 1) and found.train.pictures[0].shape == (32, 32, 1)
    assert np.array_equal(grey[3, ..., 0], np.asarray(Image.fromarray(colours[3]).convert("L")))
    np.testing.assert_allclose(grey[..., 0], colours @ [0.299, 0.587, 0.114], atol=0.51)


def test_grey_arrays_become_colours_that_are_grey() -> None:
    found = corpus("data.channels=3", "data.mean=[0.3,0.3,0.3]", "data.std=[0.4,0.4,0.4]")
    pixels = np.asarray(found.test.pictures)
    assert pixels.shape == (300, 8, 8, 3)
    for channel in range(3):
        written = load_digits().images[-300:]
        np.testing.assert_allclose(pixels[..., channel] / 255 * 16, written, atol=0.04)
