"""Batches of images for Lightning.

Shapes: B images, C channels, H and W pixels.
"""

import math
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader

from residual_lab.config.data import ImageDataConfig
from residual_lab.config.schema import Config
from residual_lab.data.augmentation import (
    augmented,
    check_augmentation,
    mixing_partners,
    mixing_share,
)
from residual_lab.data.batches import Batch
from residual_lab.data.images import Pixels, centre, load
from residual_lab.data.module import DataModule
from residual_lab.data.order import permutation


class ImageDataModule(DataModule):
    """Images (B, C, H, W), float32 and normalised, and classes (B,), int64.

    With mixup, training targets are shares of each class (B, classes).
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.data, ImageDataConfig)
        self.data, self.readers = config.data, config.data.workers
        self.mean, self.std = (
            torch.tensor(values)[:, None, None] for values in (config.data.mean, config.data.std)
        )

    def setup(self, stage: str | None = None) -> None:
        """Before the first batch: raise DataError where what changes images is missing."""
        check_augmentation(self.data)

    @property
    def guess_loss(self) -> float:
        """That of taking all classes for equally likely."""
        return math.log(self.data.classes)

    def training_batch(self, start: int, stop: int) -> Batch:
        places = np.arange(start, stop)
        if not self.data.mixup:
            return self._training(places)
        batch = self.config.batch_sequences
        read = np.union1d(places, mixing_partners(places, batch))
        images, labels = self._training(read)
        one_hot = F.one_hot(labels, self.data.classes).float()
        own, other = (
            torch.from_numpy(np.searchsorted(read, chosen))
            for chosen in (places, mixing_partners(places, batch))
        )
        numbers = places // batch
        shares = {
            n: mixing_share(self.data.mixup, self.config.seed, n) for n in set(numbers.tolist())
        }
        share = torch.tensor([shares[n] for n in numbers.tolist()])
        mixed = [
            torch.lerp(part[other], part[own], share.reshape(-1, *[1] * (part.ndim - 1)))
            for part in (images, one_hot)
        ]
        return mixed[0], mixed[1]

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation("validation")

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation("test")

    def _training(self, places: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """What is at ``places`` of the stream: a permutation of the set for each epoch."""
        images, seed = load(self.data).train, self.config.seed
        chosen = [
            int(permutation(seed, epoch, len(images))[place])
            for epoch, place in zip(*divmod(places, len(images)), strict=True)
        ]
        pixels = [
            augmented(images.pictures[index], self.data, seed, int(place))
            for index, place in zip(chosen, places, strict=True)
        ]
        return self._normalised(pixels), torch.from_numpy(images.labels[chosen])

    def _evaluation(self, name: str) -> DataLoader[Batch]:
        size = len(getattr(load(self.data), name))
        return self.evaluation(partial(self._cut, name), size)

    def _cut(self, name: str, chosen: NDArray[np.int64]) -> Batch:
        """Images of the set ``name``: a process that reads may have to load it itself."""
        images = getattr(load(self.data), name)
        pixels = [centre(images.pictures[index], self.data) for index in chosen]
        return self._normalised(pixels), torch.from_numpy(images.labels[chosen])

    def _normalised(self, pixels: list[Pixels]) -> Tensor:
        images_BCHW = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
        return images_BCHW.sub_(self.mean).div_(self.std)
