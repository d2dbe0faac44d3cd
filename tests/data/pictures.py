"""Configurations and sets of small images."""

from itertools import islice
from typing import Any

from residual_lab.config import Config, compose
from residual_lab.config.data import ImageDataConfig
from residual_lab.data.images import ImageCorpus, load

FOLDERS = ("model=resnet_desk", "data=imagenet", "data.classes=2", "data.image_size=16")
"""Of the fixture ``folders``, whose place is to be given too."""


def configuration(*overrides: str) -> Config:
    return compose(["model=resnet_desk", "data=digits", "optim=resnet", *overrides])


def corpus(*overrides: str) -> ImageCorpus:
    config = configuration(*overrides)
    load.cache_clear()
    assert isinstance(config.data, ImageDataConfig)
    return load(config.data)


def batches(module: Any, count: int) -> list[Any]:
    return list(islice(module.train_dataloader(), count))
