"""``residual-lab eval`` of runs on images: in their precision, and where their data is now."""

import json
from pathlib import Path

import numpy as np
import pytest

from residual_lab.cli import main
from residual_lab.config import compose
from residual_lab.config.data import ImageDataConfig
from residual_lab.data.images import load
from residual_lab.evaluation.losses import on_images
from residual_lab.run_directory import RunDirectory
from tests.training.conftest import Lab

SMALL = (
    *("model=resnet_desk", "model.stages=[2,2]", "model.base_width=8", "optim=resnet"),
    *("data=cifar10", "data.validation_images=20", "data.mixup=0.2", "hardware=cpu"),
    *("budget.tokens=24", "budget.batch_tokens=8", "evaluation.every_steps=3"),
    *("measure.warmup_steps=1", "measure.window_steps=1", "hardware.precision=64-true"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the images were while the run was trained; a link, so that they can move."""
    folder, random = tmp_path_factory.mktemp("cifar"), np.random.default_rng(0)
    (folder / "now").mkdir()
    for name in [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]:
        rows = random.integers(0, 256, (16, 3073), np.uint8)
        rows[:, 0] %= 10
        (folder / "now" / f"{name}.bin").write_bytes(rows.tobytes())
    (folder / "then").symlink_to(folder / "now")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, lab: Lab) -> RunDirectory:
    """In float64, as far as Lightning's precision of that name goes."""
    place = (f"data.path={folder / 'then'}", f"run.dir={folder}")
    run = RunDirectory.create(compose([*SMALL, *place]))
    assert lab.execute(run) == 0
    return run


NUMBERS = [
    f"{split}_{name}" for split in ("val", "test") for name in ("loss", "accuracy", "top5_accuracy")
]


def test_a_run_in_float64_whose_images_have_moved(
    run: RunDirectory, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run.path), "format=json"]) == 0
    (here,) = json.loads(capsys.readouterr().out)["rows"]
    (folder / "then").unlink()
    load.cache_clear()
    assert main(["eval", str(run.path)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "then: there is no such file or folder; say with" in line
    assert main(["eval", str(run.path), f"data.path={folder / 'now'}", "format=json"]) == 0
    (moved,) = json.loads(capsys.readouterr().out)["rows"]
    for key in NUMBERS:
        assert here[key] == moved[key] == pytest.approx((run.result or {})[key], rel=1e-9)


def test_the_table_of_a_run_on_images(
    run: RunDirectory, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in other tables, accuracies in percent; no word of tokens."""
    path = f"data.path={folder / 'now'}"
    assert main(["eval", str(run.path), path, "format=md"]) == 0
    table = capsys.readouterr().out
    for title in ("val loss", "val accuracy [%]", "test accuracy [%]", "test top-5 [%]"):
        assert f" {title} |" in table
    assert f" {100 * (run.result or {})['test_top5_accuracy']:.2f} |" in table
    assert "Loss is nats per image, over the whole validation and test sets. Data: " in table
    assert "token" not in table


def test_images_of_another_place_are_read_as_the_runs_own(run: RunDirectory, folder: Path) -> None:
    other = on_images(run.config, ["data=imagenet", f"data.path={folder / 'now'}"]).data
    assert isinstance(other, ImageDataConfig) and isinstance(run.config.data, ImageDataConfig)
    assert (other.source, other.name, other.path) == ("images", "imagenet", str(folder / "now"))
    for key in ("classes", "channels", "image_size", "resize", "mean", "std"):
        assert getattr(other, key) == getattr(run.config.data, key)
    changed = on_images(run.config, ["data.validation_images=7", f"data.path={folder / 'now'}"])
    place = {"path": str(folder / "now"), "validation_images": 7}
    assert changed.data == run.config.data.model_copy(update=place)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["data=python_source"], "model.family=resnet: reads images, not data.source=python"),
        (["data=text", "data.path=."], "model.family=resnet: reads images, not data.source=files"),
        (["data=cifar100"], "data.name=cifar100: has 100 classes, and the run's model 10"),
        (["data=imagenet"], "data.name=imagenet: has 1000 classes, and the run's model 10"),
        (["data.classes=10"], "data.classes: a run's model has its own; leave this out"),
        (["data.flip=false"], "data.flip: changes training alone; leave this out"),
        (["data.path=nowhere"], "nowhere: there is no such file or folder"),
        (["data.pth=x"], "data.pth=x: no such key; did you mean data.path?"),
    ],
)
def test_refusals(
    run: RunDirectory, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run.path), *arguments]) == 2
    captured = capsys.readouterr()
    assert line in captured.err and captured.err.count("\n") == 1 and not captured.out
