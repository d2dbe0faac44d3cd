"""Composition: what is shipped is valid, and Hydra leaves nothing behind."""

from pathlib import Path

import pytest
import yaml
from hydra.core.global_hydra import GlobalHydra

from residual_lab.config import Config, compose, conf_directory

CHOICES = sorted((file.parent.name, file.stem) for file in conf_directory().glob("*/*.yaml"))


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_that_is_shipped_is_valid(group: str, choice: str, tmp_path: Path) -> None:
    # room for every vocabulary, sequence length and number of devices that is shipped
    room = ["budget.batch_tokens=65536"]
    if choice != "smoke":  # it has a budget of its own
        room.append("budget.tokens=131072")
    if choice == "text":
        room.append(f"data.path={tmp_path}")
    needed = {
        "low_rank_linear": "data=linear_map",
        "linear_map": "model=low_rank_linear",
        "digits": "model=resnet_desk",
        "imagenet": "model=resnet50",
        **dict.fromkeys(("cifar10", "cifar100"), "model=resnet110_cifar"),
        **dict.fromkeys(("resnet_desk", "vit_desk"), "data=digits"),
        **dict.fromkeys(("resnet50", "resnet50_plus1", "vit_s16"), "data=imagenet"),
        "resnet110_cifar": "data=cifar10",
    }
    room += [needed[choice]] if choice in needed else []
    config = compose([*room, f"{group}={choice}"])
    assert getattr(config, group).name == choice


def test_the_saved_configuration_reads_back_the_same() -> None:
    config = compose(["residual=laurel_rw+lr", "model=gpt2_124m", "budget.tokens=8192"])
    text = yaml.safe_dump(config.model_dump(mode="json"))
    assert Config.model_validate(yaml.safe_load(text)) == config
    assert "$" not in text


def test_derived_numbers() -> None:
    config = compose(["budget.tokens=81920", "budget.batch_tokens=8192"])
    assert (config.steps, config.tokens, config.batch_sequences) == (10, 81920, 32)
    config = compose(["budget.tokens=null", "budget.steps=3"])
    assert (config.steps, config.tokens) == (3, 3 * config.budget.batch_tokens)
    assert config.name == "desk-plain-python_source"


def test_seed_0_is_a_seed() -> None:
    """F15: 0 is kept as 0."""
    assert compose(["seed=0"]).seed == 0


def test_paths_are_absolute_whatever_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F11: what was relative where the command was given works from any other folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "mine.py").write_text(
        "from residual_lab.residuals import Connection\nclass Mine(Connection): ...\n"
    )
    overrides = ["run.dir=here", "data.cache_dir=../c", "data=text", "data.path=text"]
    config = compose([*overrides, "residual.connection=mine.py:Mine"])
    assert config.run.dir == str(tmp_path / "here")
    assert config.residual.connection == f"{tmp_path / 'mine.py'}:Mine"
    assert config.data.path == str(tmp_path / "text")
    assert config.data.cache_dir is not None and Path(config.data.cache_dir).is_absolute()


def test_hydra_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    compose(["residual=laurel_rw"])
    assert Path.cwd() == tmp_path
    assert list(tmp_path.iterdir()) == []
    assert not GlobalHydra.instance().is_initialized()


def test_a_users_groups_and_primary_configuration(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/small.yaml").write_text("# @package _global_\nmodel:\n  layers: 2\n")
    (tmp_path / "mine.yaml").write_text("defaults: [config, _self_]\nseed: 7\n")
    assert compose(["+recipe=small"], config_dir=tmp_path).model.layers == 2
    assert compose([], config_dir=tmp_path, config_name="mine").seed == 7


def test_a_folder_with_an_odd_name(tmp_path: Path) -> None:
    folder = tmp_path / "it's my, folder"
    (folder / "recipe").mkdir(parents=True)
    (folder / "recipe/small.yaml").write_text("# @package _global_\nseed: 9\n")
    assert compose(["+recipe=small"], config_dir=folder).seed == 9
