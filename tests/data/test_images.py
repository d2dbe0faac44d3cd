"""Labelled images: where they come from, and which are in which set and batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from residual_lab.data import build_data_module, fingerprint
from residual_lab.data.image_module import ImageDataModule
from residual_lab.data.images import load
from residual_lab.errors import ConfigError, DataError

from .pictures import FOLDERS, batches, configuration, corpus


class Placed(ImageDataModule):
    """As one of several processes."""

    rank, world_size = 0, 1  # type: ignore[assignment]


def test_digits_are_scikit_learns_in_three_parts_by_their_index() -> None:
    found, (pixels, labels) = corpus(), load_digits(return_X_y=True)
    parts = (found.train, found.validation, found.test)
    assert [len(part) for part in parts] == [1197, 300, 300]
    assert np.array_equal(np.concatenate([part.labels for part in parts]), labels)
    together = np.concatenate([np.asarray(part.pictures) for part in parts]).reshape(-1, 64)
    np.testing.assert_allclose(together / 255 * 16, pixels, atol=0.04)
    assert configuration("seed=1").data == configuration().data
    assert corpus().fingerprint == found.fingerprint
    assert corpus("data.validation_images=200").fingerprint != found.fingerprint


def test_batches_are_normalised_and_evaluation_reads_each_image_once() -> None:
    module = build_data_module(configuration("evaluation.batch_sequences=128"))
    images, labels = zip(*module.val_dataloader(), strict=True)
    whole = torch.cat(images)
    assert whole.shape == (300, 1, 8, 8) and whole.dtype == torch.float32
    assert torch.equal(torch.cat(labels), torch.from_numpy(corpus().validation.labels))
    train = torch.cat([images for images, _ in batches(module, 11)])
    assert train.mean().abs() < 0.05 and (train.std() - 1).abs() < 0.05


def test_each_epoch_reads_every_image_once_in_an_order_of_the_seed() -> None:
    module = build_data_module(configuration("budget.batch_tokens=133", "budget.tokens=1330"))
    read = [images for images, _ in batches(module, 18)]  # two epochs of 1197 = 9 · 133
    epochs = [torch.cat(read[:9]).flatten(1), torch.cat(read[9:]).flatten(1)]
    assert not torch.equal(*epochs)
    one, two = (sorted(map(tuple, epoch.tolist())) for epoch in epochs)
    assert one == two
    other = build_data_module(
        configuration("budget.batch_tokens=133", "budget.tokens=1330", "seed=1")
    )
    assert not torch.equal(batches(other, 1)[0][0], read[0])


AUGMENTED = ("data.crop=padded", "data.flip=true", "data.mixup=0.2")


@pytest.mark.parametrize("options", [(), AUGMENTED], ids=["as they are", "augmented"])
def test_devices_accumulation_readers_and_a_resume_share_one_stream(options: Any) -> None:
    """Two processes with two micro-batches each read together what one reads."""
    budget = ("budget.batch_tokens=24", "budget.tokens=240", *options)
    straight = batches(build_data_module(configuration(*budget)), 5)
    for readers in (0, 2):
        parts = []
        for rank in (0, 1):
            workers = f"data.workers={readers}"
            module = Placed(configuration("hardware.accumulate=2", workers, *budget))
            module.rank, module.world_size = rank, 2  # type: ignore[misc, assignment]
            module.start_step = 3
            parts.append(batches(module, 4))
        for step in (0, 1):
            for field in (0, 1):
                dealt = [
                    parts[rank][2 * step + micro][field] for micro in (0, 1) for rank in (0, 1)
                ]
                assert torch.equal(torch.cat(dealt), straight[3 + step][field])


def test_mixup_mixes_each_image_with_the_one_before_it_in_the_batch() -> None:
    budget = ("budget.batch_tokens=24", "budget.tokens=240")
    plain_images, labels = batches(build_data_module(configuration(*budget)), 2)[1]
    images, targets = batches(build_data_module(configuration(*budget, "data.mixup=0.5")), 2)[1]
    torch.testing.assert_close(targets.sum(-1), torch.ones(24))
    one_hot = torch.nn.functional.one_hot(labels, 10).float()
    differs = labels != labels.roll(1)
    share = targets[differs].max(-1).values
    assert share.unique().numel() == 1 and 0.5 <= share[0] < 1
    for found, whole in ((images, plain_images), (targets, one_hot)):
        torch.testing.assert_close(found, share[0] * whole + (1 - share[0]) * whole.roll(1, 0))


# -- folders --------------------------------------------------------------------------------


def test_folders_of_classes(folders: Path) -> None:
    small = (*FOLDERS, f"data.path={folders}", "data.resize=20", "data.workers=0")
    config = configuration(*small, "data.validation_images=3", "evaluation.batch_sequences=4")
    found = corpus(*small, "data.validation_images=3")
    assert (len(found.train), len(found.validation), len(found.test)) == (7, 3, 4)
    assert found.test.labels.tolist() == [0, 0, 1, 1]
    ((images, labels),) = build_data_module(config).test_dataloader()
    assert images.shape == (4, 3, 16, 16) and labels.tolist() == [0, 0, 1, 1]
    (train, _), *_ = batches(build_data_module(config), 1)
    assert train.shape[1:] == (3, 16, 16)
    before = fingerprint(config)
    (folders / "val" / "ant" / "9.png").write_bytes(b"no image")
    load.cache_clear()
    assert fingerprint(config) != before


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (("data.path=.",), "data.source=digits"),
        (("data.mean=[0.1,0.2]",), "data.mean"),
        (("data.std=[0]",), "data.std"),
        (("data=cifar10", "data.path=nowhere"), "data.path"),
        (("data=cifar10", "data.resize=40"), "data.resize"),
        (("data=cifar10", "data.image_size=1"), "data.image_size=1: too small"),
        (("model=vit_desk", "model.patch_size=3"), "data.image_size=8: must be a multiple"),
        (("model.stages=[4,1]",), "model.stages"),
        (("residual=dca",), "residual.connection"),
        (("data=python_source",), "model.family=resnet: reads images"),
        (("model=desk",), "model.family=decoder: reads text"),
        (("data.label_smoothing=1",), "data.label_smoothing=1: must be"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: tuple[str, ...], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configuration(*overrides)
    assert any(problem.startswith(line) for problem in refused.value.problems)


def test_data_that_are_not_what_they_should_be(folders: Path, tmp_path: Path) -> None:
    path = f"data.path={folders}"
    with pytest.raises(DataError, match=r"data.classes=3: .* has 2 class folders"):
        corpus(*FOLDERS, "data.classes=3", path)
    with pytest.raises(DataError, match=r"data.validation_images=12812: there are only 10"):
        corpus(*FOLDERS, path)
    with pytest.raises(DataError, match="must have the folders train and val"):
        corpus(*FOLDERS, f"data.path={folders / 'train'}")
    with pytest.raises(DataError, match=r"has no data_batch_1 or data_batch_1\.bin"):
        corpus("data=cifar10", path)
    with pytest.raises(DataError, match=r"data.validation_images=1497: there are 1497"):
        corpus("data.validation_images=1497")
