"""Sets of labelled images, whole or read one by one, and how they are cut for evaluation.

Shapes: N images, H and W pixels, C channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
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
    """Find the images that ``data`` describes, once. Raises DataError."""
    from residual_lab.data import image_sources

    corpus = getattr(image_sources, f"load_{data.source}")(data)
    assert isinstance(corpus, ImageCorpus)
    for name in ("train", "validation", "test"):
        part: ImageSet = getattr(corpus, name)
        if not len(part):
            raise DataError(f"data.path={data.path}: {data.name} has no {name} images in it")
        outside = part.labels[(part.labels < 0) | (part.labels >= data.classes)]
        if len(outside):
            raise DataError(
                f"data.classes={data.classes}: {data.name} has an image of class {outside[0]}, "
                "counted from 0; set data.classes and data.label_field to what there is"
            )
    return corpus


def centre(picture: Any, data: ImageDataConfig) -> Pixels:
    """Scale the shorter side to ``data.resize`` and cut out the middle, ``data.image_size``²."""
    if isinstance(picture, np.ndarray):
        if picture.shape[:2] == (data.image_size, data.image_size):
            return picture
        picture = as_image(picture)
    size, shorter = data.image_size, min(picture.size)
    wanted = data.resize or size
    width, height = (round(side * wanted / shorter) for side in picture.size)
    picture = picture.resize((width, height), resample=BILINEAR)
    left, top = round((width - size) / 2), round((height - size) / 2)
    return as_pixels(picture.crop((left, top, left + size, top + size)), data.channels)


BILINEAR = 2  # of Pillow, with antialiasing: what torchvision calls bilinear for its images


def as_image(pixels: Pixels) -> Any:
    """An image of Pillow. Raises DataError where there is no Pillow."""
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"data: images are read by Pillow, which is missing: {EXTRA}") from None
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def as_pixels(picture: Any, channels: int) -> Pixels:
    """An array (H, W, C) of an image of Pillow, or of an array."""
    if isinstance(picture, np.ndarray):
        return picture
    pixels = np.asarray(picture.convert("RGB" if channels == 3 else "L"))
    return pixels if channels == 3 else pixels[..., None]
