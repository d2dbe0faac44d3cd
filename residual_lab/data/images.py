"""Sets of labelled images, whole or read one by one, and how they are cut for evaluation.

Shapes: N images, H and W pixels, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from residual_lab.config.data import ImageDataConfig
from residual_lab.data.order import permutation
from residual_lab.errors import DataError

Pixels = NDArray[np.uint8]  # (H, W, C)
EXTRA = "pip install 'residual-lab[vision]'"


@dataclass(frozen=True)
class ImageSet:
    """Pictures and their classes."""

    pictures: Sequence[Any] | Pixels  # arrays (H, W, C), or images of Pillow of any size
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, places: NDArray[np.int64]) -> "ImageSet":
        """Those at ``places``."""
        if isinstance(self.pictures, np.ndarray):
            return ImageSet(self.pictures[places], self.labels[places])
        return ImageSet(Chosen(self.pictures, places), self.labels[places])

    def split(self, count: int) -> tuple["ImageSet", "ImageSet"]:
        """All but ``count`` of them, and those, which are always the same. Raises DataError."""
        if count >= len(self):
            raise DataError(
                f"data.validation_images={count}: there are only {len(self)} training images; "
                "hold out fewer"
            )
        order = permutation(0, 0, len(self)).astype(np.int64)
        rest, chosen = np.sort(order[:-count]), np.sort(order[-count:])
        return self.at(rest), self.at(chosen)


@dataclass(frozen=True)
class Chosen(Sequence[Any]):
    """Some of the pictures, read when they are asked for."""

    pictures: Sequence[Any]
    places: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        return self.pictures[int(self.places[index])]


@dataclass(frozen=True)
class ImageCorpus:
    """The three sets, which do not depend on a run's seed."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet
    version: str  # of pictures that are not in memory

    @property
    def fingerprint(self) -> str:
        """A hash of all labels, and of the pictures or their version."""
        state = blake2b(self.version.encode(), digest_size=8)
        for part in (self.train, self.validation, self.test):
            state.update(part.labels.tobytes())
            if isinstance(part.pictures, np.ndarray):
                state.update(np.ascontiguousarray(part.pictures).tobytes())
        return state.hexdigest()


@lru_cache(maxsize=2)
def load(data: ImageDataConfig) -> ImageCorpus:
    """Find the images that ``data`` describes, once; arrays have ``data.channels``.

    Raises DataError, also where Pillow is missing and the images need it.
    """
    from residual_lab.data import image_sources

    if data.path is not None and not Path(data.path).exists():
        raise DataError(
            f"data.path={data.path}: there is no such file or folder; say with data.path=PATH "
            f"where {data.name} is now"
        )
    _check_pillow(data)
    corpus = getattr(image_sources, f"load_{data.source}")(data)
    assert isinstance(corpus, ImageCorpus)
    parts: dict[str, ImageSet] = {name: getattr(corpus, name) for name in SETS}
    for name, part in parts.items():
        _check_labels(name, part, data)
        parts[name] = in_channels(part, data.channels)
    return ImageCorpus(**parts, version=corpus.version)


SETS = ("train", "validation", "test")
ARRAYS = {"digits": (8, 1), "cifar": (32, 3)}  # pixels along a side, channels; without Pillow


def _check_pillow(data: ImageDataConfig) -> None:
    """Only arrays that stay as they are do without."""
    size, channels = ARRAYS.get(data.source, (0, 0))
    from_hub = data.source == "cifar" and data.path is None
    as_they_are = (data.image_size, data.channels) == (size, channels)
    if as_they_are and not from_hub and data.crop != "random_resized":
        return
    try:
        from PIL import Image  # noqa: F401
    except ImportError:
        raise DataError(
            f"data.name={data.name}: its images are read or changed by Pillow, which is missing: "
            f"{EXTRA}"
        ) from None


def _check_labels(name: str, part: ImageSet, data: ImageDataConfig) -> None:
    if not len(part):
        raise DataError(f"data.path={data.path}: {data.name} has no {name} images in it")
    outside = part.labels[(part.labels < 0) | (part.labels >= data.classes)]
    if len(outside):
        raise DataError(
            f"data.classes={data.classes}: {data.name} has an image of class {outside[0]}, "
            "counted from 0; set data.classes and data.label_field to what there is"
        )


def in_channels(images: ImageSet, channels: int) -> ImageSet:
    """Arrays as Pillow makes them grey, or as colours that are grey.

    Images of Pillow stay as they are: they become so when they are read.
    """
    pictures = images.pictures
    if not isinstance(pictures, np.ndarray) or pictures.shape[-1] == channels:
        return images
    pixels = np.stack([as_pixels(as_image(picture), channels) for picture in pictures])
    return ImageSet(pixels, images.labels)


def centre(picture: Any, data: ImageDataConfig) -> Pixels:
    """Scale the shorter side to ``data.resize`` and cut out the middle, ``data.image_size``².

    Rounded as torchvision's Resize and CenterCrop do: the longer side down to whole pixels, the
    offsets of the middle to the nearest, halves to the even one. Bilinear, antialiased. ``picture``
    is an image of Pillow, or an array (H, W, C) with ``data.channels``.
    """
    if isinstance(picture, np.ndarray):
        if picture.shape[:2] == (data.image_size, data.image_size):
            return picture
        picture = as_image(picture)
    picture = in_colours(picture, data.channels)  # Pillow scales no palette smoothly
    size, shorter = data.image_size, min(picture.size)
    wanted = data.resize or size
    width, height = (side * wanted // shorter for side in picture.size)
    picture = picture.resize((width, height), resample=BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return as_pixels(picture.crop((left, top, left + size, top + size)), data.channels)


BILINEAR = 2  # of Pillow, with antialiasing: what torchvision calls bilinear for its images


def as_image(pixels: Pixels) -> Any:
    """An image of Pillow."""
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def in_colours(picture: Any, channels: int) -> Any:
    """An image of Pillow in red, green and blue, or in grey: 0.299 R + 0.587 G + 0.114 B."""
    return picture.convert("RGB" if channels == 3 else "L")


def as_pixels(picture: Any, channels: int) -> Pixels:
    """An array (H, W, C) of an image of Pillow."""
    pixels = np.asarray(in_colours(picture, channels))
    return pixels if channels == 3 else pixels[..., None]
