"""Where labelled images come from: scikit-learn, CIFAR's archives, folders of classes, the hub."""

import io
import pickle
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from residual_lab.config.data import ImageDataConfig
from residual_lab.data.images import EXTRA, ImageCorpus, ImageSet, as_pixels
from residual_lab.errors import DataError

DIGITS_TEST = 300  # the last of 1797, by other writers than the first
SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
TEST_FOLDERS = ("val", "validation", "test")


def load_digits(data: ImageDataConfig) -> ImageCorpus:
    """scikit-learn's digits (Alpaydin and Kaynak 1998) in their own order.

    The test set is the last 300, the validation set those before. Neighbours are often of one
    writer, so parts that are whole leave few writers in two sets. Raises DataError, also where
    there is no scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits as digits
    except ImportError:
        raise DataError(
            f"data.source=digits: comes with scikit-learn, which is missing: {EXTRA}"
        ) from None
    pixels, labels = digits(return_X_y=True)
    scaled = np.rint(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    whole = ImageSet(scaled, labels.astype(np.int64))
    held_out = len(whole) - DIGITS_TEST
    first = held_out - data.validation_images
    if first < 1:
        raise DataError(
            f"data.validation_images={data.validation_images}: there are {held_out} images beside "
            "the test set; hold out fewer"
        )
    parts = np.split(np.arange(len(whole)), [first, held_out])
    train, validation, test = (whole.at(part) for part in parts)
    return ImageCorpus(train, validation, test, version="digits")


def load_cifar(data: ImageDataConfig) -> ImageCorpus:
    """CIFAR-10 or CIFAR-100 (Krizhevsky 2009), in memory; its test set is the test set.

    Of an archive ``data.label_field`` says which of the two it is. Raises DataError.
    """
    if data.path is None:
        sets = [_in_memory(part, data) for part in _hub(data)[0]]
    else:
        layout = _LAYOUTS[data.label_field]
        files = _files(Path(data.path), data)
        sets = [
            _joined([_batch(name, files, data) for name in names])
            for names in (layout.train, (layout.test,))
        ]
    return ImageCorpus(*sets[0].split(data.validation_images), sets[1], version="cifar")


def load_images(data: ImageDataConfig) -> ImageCorpus:
    """A folder of class folders, or a data set of the hub; its validation set is the test set.

    ImageNet's own test set has no labels, so its validation set is what one tests on, and the
    validation set is held out of the training set. Raises DataError; a file that is no image does
    so when it is read.
    """
    (train, test), version = _hub(data) if data.path is None else _folders(data)
    return ImageCorpus(*train.split(data.validation_images), test, version=version)


# -- CIFAR's archives -----------------------------------------------------------------------


class _Layout(NamedTuple):
    """What the files of an archive are called, and where the labels are in them."""

    number: int  # of CIFAR, in the archive's name
    train: Sequence[str]
    test: str
    labels: int  # bytes before the pixels of an image
    column: int  # the one of them that is read
    key: bytes  # of the labels in a pickle


_TEN = (10, [f"data_batch_{number}" for number in range(1, 6)], "test_batch")
_HUNDRED = (100, ["train"], "test")
_LAYOUTS = {
    "label": _Layout(*_TEN, 1, 0, b"labels"),
    "fine_label": _Layout(*_HUNDRED, 2, 1, b"fine_labels"),
    "coarse_label": _Layout(*_HUNDRED, 2, 0, b"coarse_labels"),
}


def _files(path: Path, data: ImageDataConfig) -> Mapping[str, Callable[[], bytes]]:
    """The files of an archive, or of a folder and those in it, by name.

    A folder without the unpacked files stands for the archive in it, that of the right set.
    """
    layout = _LAYOUTS[data.label_field]
    if path.is_dir():
        named = re.compile(rf"cifar[-_]?{layout.number}(?!\d).*\.tar\.gz")
        archives = sorted(file for file in path.iterdir() if named.fullmatch(file.name))
        found = {file.name: file.read_bytes for file in path.rglob("*") if file.is_file()}
        if not archives or {layout.test, f"{layout.test}.bin"} & found.keys():
            return found
        path = archives[0]
    try:
        with tarfile.open(path) as archive:
            contents = {
                Path(member.name).name: opened.read()
                for member in archive
                if (opened := archive.extractfile(member)) is not None
            }
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"data.path={path}: no archive of {data.name} ({error})") from None
    return {name: io.BytesIO(content).getvalue for name, content in contents.items()}


def _batch(
    name: str, files: Mapping[str, Callable[[], bytes]], data: ImageDataConfig
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels (N, 3072) and labels of one file."""
    layout = _LAYOUTS[data.label_field]
    try:
        if f"{name}.bin" in files:
            content = np.frombuffer(files[f"{name}.bin"](), np.uint8)
            rows = content.reshape(-1, layout.labels + 3072)
            return rows[:, layout.labels :], rows[:, layout.column].astype(np.int64)
        if name in files:
            batch = _Arrays(io.BytesIO(files[name]()), encoding="bytes").load()
            return batch[b"data"], np.array(batch[layout.key], np.int64)
    except (ValueError, KeyError, TypeError, pickle.UnpicklingError, EOFError) as error:
        raise DataError(
            f"data.path={data.path}: {name} is no file of {data.name}: {error}"
        ) from None
    raise DataError(
        f"data.path={data.path}: has no {name} or {name}.bin; give the archive of {data.name} or "
        "the folder that it unpacks to"
    )


class _Arrays(pickle.Unpickler):
    """Reads arrays and containers, and calls nothing else that a file may name."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if module.startswith("numpy") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            import _codecs

            return _codecs.encode
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not read")


def _joined(batches: Sequence[tuple[NDArray[np.uint8], NDArray[np.int64]]]) -> ImageSet:
    pixels = np.concatenate([pixels for pixels, _ in batches])
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return ImageSet(np.ascontiguousarray(images), np.concatenate([labels for _, labels in batches]))


# -- folders of classes ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Files(Sequence[Any]):
    """Images of Pillow from files."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        from PIL import Image, UnidentifiedImageError

        path = self.paths[index]
        try:
            with Image.open(path) as image:
                image.load()
                return image
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"{path}: cannot be read as an image ({error})") from None


def _folders(data: ImageDataConfig) -> tuple[tuple[ImageSet, ImageSet], str]:
    root = Path(str(data.path))
    test = next((root / name for name in TEST_FOLDERS if (root / name).is_dir()), None)
    if not (root / "train").is_dir() or test is None:
        raise DataError(
            f"data.path={root}: must have the folders train and val, each with a folder a class"
        )
    classes = sorted(folder.name for folder in (root / "train").iterdir() if folder.is_dir())
    if len(classes) != data.classes:
        raise DataError(
            f"data.classes={data.classes}: {root / 'train'} has {len(classes)} class folders"
        )
    state, sets = blake2b(digest_size=8), []
    for folder in (root / "train", test):
        paths, labels = [], []
        for label, name in enumerate(classes):
            found = sorted(p for p in (folder / name).glob("*") if p.suffix.lower() in SUFFIXES)
            if not found:
                raise DataError(f"{folder / name}: must be a folder with images of its class")
            paths += found
            labels += [label] * len(found)
        for path in paths:
            state.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        sets.append(ImageSet(_Files(paths), np.array(labels, np.int64)))
    return (sets[0], sets[1]), state.hexdigest()


# -- the hub --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows(Sequence[Any]):
    """Images of Pillow from a data set of the hub."""

    rows: Any
    field: str

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index][self.field]


def _splits(data: ImageDataConfig) -> tuple[Mapping[str, Any], str]:
    """Those of the data set on the hub, or in its cache, and the commit that they are of."""
    import datasets

    from residual_lab.data.hub import hub_error

    datasets.disable_progress_bars()
    try:
        builder = datasets.load_dataset_builder(str(data.repository), revision=data.revision)
        builder.download_and_prepare()
        return builder.as_dataset(), str(builder.hash)
    except Exception as error:
        raise hub_error(
            error,
            "data.repository",
            str(data.repository),
            at_hand="data=digits",
            elsewhere="or give a folder of class folders: data.path=FOLDER",
        ) from None


def _hub(data: ImageDataConfig) -> tuple[tuple[ImageSet, ImageSet], str]:
    splits, commit = _splits(data)
    test = next((name for name in ("validation", "test") if name in splits), None)
    if "train" not in splits or test is None:
        raise DataError(
            f"data.repository={data.repository}: has the splits {', '.join(splits)}; needs train, "
            "and validation or test"
        )
    sets = []
    for name in ("train", test):
        rows = splits[name]
        for key in ("image_field", "label_field"):
            if getattr(data, key) not in rows.column_names:
                raise DataError(
                    f"data.{key}={getattr(data, key)}: {data.repository} has the fields "
                    + ", ".join(rows.column_names)
                )
        labels = np.array(rows[data.label_field][:], np.int64)
        sets.append(ImageSet(_Rows(rows, data.image_field), labels))
    return (sets[0], sets[1]), f"{data.repository} {commit}"


def _in_memory(images: ImageSet, data: ImageDataConfig) -> ImageSet:
    pixels = np.stack([as_pixels(picture, data.channels) for picture in images.pictures])
    return ImageSet(pixels, images.labels)
