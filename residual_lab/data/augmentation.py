"""What is done to a training image: a function of the run's seed and of its place in the stream.

So it does not depend on devices, processes that read, or on where a run was stopped.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from residual_lab.config.data import ImageDataConfig
from residual_lab.data.images import (
    BILINEAR,
    EXTRA,
    Pixels,
    as_image,
    as_pixels,
    centre,
    in_colours,
)
from residual_lab.errors import DataError
from residual_lab.seeds import stream_seed

_ASPECTS = (3 / 4, 4 / 3)  # of random crops, width to height
_ATTEMPTS = 10


def check_augmentation(data: ImageDataConfig) -> None:
    """Raise DataError where a package is missing that training images are changed by."""
    if data.randaugment:
        _randaugment(data.randaugment, data.randaugment_magnitude)


def augmented(picture: Any, data: ImageDataConfig, seed: int, place: int) -> Pixels:
    """The picture as it is read at ``place`` of the training stream, (H, W, C)."""
    random = Generator(Philox(key=stream_seed(seed, "augmentation", place)))
    if data.crop == "random_resized":
        pixels = random_resized_crop(picture, data, random)
    else:
        pixels = centre(picture, data)
    if data.crop == "padded":
        pixels = padded_crop(pixels, data.crop_padding, random)
    if data.flip and random.random() < 0.5:
        pixels = pixels[:, ::-1]
    if data.randaugment:
        pixels = randaugment(pixels, data, int(random.integers(2**63)))
    return pixels


def padded_crop(pixels: Pixels, padding: int, random: Generator) -> Pixels:
    """Black on each side, then a window of the old size anywhere (He et al. 2015, section 4.2)."""
    height, width, _ = pixels.shape
    padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))
    top, left = (int(offset) for offset in random.integers(0, 2 * padding + 1, 2))
    return padded[top : top + height, left : left + width]


def random_resized_crop(picture: Any, data: ImageDataConfig, random: Generator) -> Pixels:
    """A part of random size, shape and place, scaled to the model's size (Szegedy et al. 2014)."""
    image = as_image(picture) if isinstance(picture, np.ndarray) else picture
    width, height = image.size
    box = _box(width, height, data.crop_area, random)
    size = (data.image_size, data.image_size)
    image = in_colours(image, data.channels)
    return as_pixels(image.resize(size, resample=BILINEAR, box=box), data.channels)


def _box(width: int, height: int, least: float, random: Generator) -> tuple[float, ...]:
    """Left, top, right and bottom: a share of the area from ``least`` to 1, any side 3:4 at most.

    Where no such window fits in ten attempts, the largest in the middle that does.
    """
    for _ in range(_ATTEMPTS):
        area = random.uniform(least, 1) * width * height
        aspect = math.exp(random.uniform(math.log(_ASPECTS[0]), math.log(_ASPECTS[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left = int(random.integers(0, width - w + 1))
            top = int(random.integers(0, height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * _ASPECTS[1])), min(height, round(width / _ASPECTS[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def randaugment(pixels: Pixels, data: ImageDataConfig, seed: int) -> Pixels:
    """Kornia's RandAugment (Cubuk et al. 2019): some random operations of one magnitude."""
    augment = _randaugment(data.randaugment, data.randaugment_magnitude)
    image = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        image = augment(image)
    return (image[0].permute(1, 2, 0) * 255).round().clamp(0, 255).to(torch.uint8).numpy()


@lru_cache
def _randaugment(operations: int, magnitude: int) -> Any:
    try:
        from kornia.augmentation.auto import RandAugment
    except ImportError:
        raise DataError(
            f"data.randaugment={operations}: is done by kornia, which is missing: {EXTRA}"
        ) from None
    return RandAugment(n=operations, m=magnitude)


def mixing_partners(places: NDArray[np.int64], batch: int) -> NDArray[np.int64]:
    """The place whose image is mixed in at each of ``places``: the one before, in one batch."""
    return places // batch * batch + (places % batch - 1) % batch


def mixing_share(p: float, seed: int, batch_number: int) -> float:
    """The share that images of one batch keep: the larger of Beta(p, p) and the rest of 1.

    One number a batch, as in big_vision (Zhang et al. 2018 have it so too).
    """
    share = Generator(Philox(key=stream_seed(seed, "mixup", batch_number))).beta(p, p)
    return max(share, 1 - share)
