"""The losses of a finished run, on its own validation and test sets or on those of other data."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from residual_lab.config.composition import compose_unchecked, resolved, started_hydra
from residual_lab.config.conflicts import unreadable
from residual_lab.config.data import ImageDataConfig, TextDataConfig
from residual_lab.config.overrides import parse, refused
from residual_lab.config.schema import Config
from residual_lab.config.validation import validate
from residual_lab.data import build_data_module, fingerprint
from residual_lab.data.batches import Batch, inputs_and_targets, predictions
from residual_lab.data.tokenizer import TokenizerFile
from residual_lab.errors import ConfigError
from residual_lab.evaluation.trained import Trained
from residual_lab.training.final import check_data
from residual_lab.training.module import WeightedMean

# Keys of the data that cannot be changed for a run that is trained, and why.
_OF_THE_TOKENIZER = dict.fromkeys(
    ("tokenizer", "vocabulary"), "a run reads text with its own tokenizer"
)
_OF_THE_MODEL = dict.fromkeys(("classes", "channels"), "a run's model has its own")
_OF_TRAINING = dict.fromkeys(
    (
        *("crop", "crop_padding", "crop_area", "flip", "randaugment", "randaugment_magnitude"),
        *("mixup", "label_smoothing"),
    ),
    "changes training alone",
)


def losses(trained: Trained, config: Config) -> dict[str, float]:
    """``val_loss``, ``test_loss``, of text the test set's ``perplexity``, of images accuracies.

    Whole sets, token-weighted, as at the end of training, on the data of ``config``. Raises
    DataError, also where that is the run's own data and has changed since.
    """
    if config.data == trained.config.data:
        now = fingerprint(trained.config)
        check_data(trained.run, now, "name the data to evaluate on with data=CHOICE")
    module = build_data_module(config)
    validation = _means(trained, module.val_dataloader())
    test = _means(trained, module.test_dataloader())
    found: dict[str, float] = {}
    for name in trained.model.measures:
        found |= {f"val_{name}": validation[name], f"test_{name}": test[name]}
    if isinstance(config.data, TextDataConfig):
        found["perplexity"] = math.exp(found["test_loss"])
    return found


def _means(trained: Trained, batches: Iterable[Batch]) -> dict[str, float]:
    """What the model measures, each over the whole set."""
    means = {name: WeightedMean() for name in trained.model.measures}
    with trained.reading():
        for batch in batches:
            here = trained.here(batch)
            for name, value in trained.model.evaluate(*inputs_and_targets(here)).items():
                means[name].add(value, predictions(here))
    return {
        name: float(mean.total) / mean.predictions
        for name, mean in means.items()
        if mean.total is not None
    }


def on_data(config: Config, overrides: Sequence[str], own: TokenizerFile) -> Config:
    """``config`` with the text that ``overrides`` (``data=text``, ``data.path=…``) ask for.

    Without ``data=`` they change the data of ``config``. Text is read with ``own``,
    the run's tokenizer; of the training set no more than one sequence is prepared. Raises
    ConfigError.
    """
    given = _given(overrides, _OF_THE_TOKENIZER)
    kept = ("sequence_length", "cache_dir", "workers")
    data = _data(config, given, kept, _composed_data(config, overrides))
    if "train_tokens" not in given:
        data["train_tokens"] = data["sequence_length"]
    assert isinstance(config.data, TextDataConfig)
    data["tokenizer"], data["vocabulary"] = str(own.path), config.data.vocabulary
    return _with(config, data, data["sequence_length"])


def on_images(config: Config, overrides: Sequence[str]) -> Config:
    """``config`` with the images that ``overrides`` (``data.path=…``) ask for.

    Without ``data=`` they change the data of ``config``. The model's classes and channels stay, and
    unless they are given so do size and normalisation. Raises ConfigError.
    """
    given = _given(overrides, _OF_THE_MODEL | _OF_TRAINING)
    # Digits have the keys of all images.
    base = ["model=resnet_desk", *([] if "data" in given else ["data=digits"])]
    composed = _composed_data(config, [*base, *overrides])
    assert isinstance(config.data, ImageDataConfig)
    own_folder = composed["source"] == "images" and composed["path"] is not None
    if "data" in given and not own_folder and composed["classes"] != config.data.classes:
        raise ConfigError(
            f"data.name={composed['name']}: has {composed['classes']} classes, and the run's model "
            f"{config.data.classes}; name images of the same classes"
        )
    kept = (*_OF_THE_MODEL, "image_size", "resize", "mean", "std", "workers")
    return _with(config, _data(config, given, kept, composed), 1)


def _given(overrides: Sequence[str], fixed: Mapping[str, str]) -> set[str]:
    """The keys of the data that ``overrides`` give. Raises ConfigError for those in ``fixed``."""
    parsed, problems = parse(overrides)
    given = {override.key_or_group.removeprefix("data.") for override in parsed}
    problems += [
        f"data.{key}: {reason}; leave this out" for key, reason in fixed.items() if key in given
    ]
    if problems:
        raise ConfigError(*problems)
    return given


def _data(
    config: Config, given: set[str], kept: Sequence[str], composed: Mapping[str, Any]
) -> dict[str, Any]:
    """What is ``given``; all else as before, and with ``data=`` only what is ``kept``."""
    before = config.data.model_dump(mode="json")
    as_before = kept if "data" in given else before
    return {**composed, **{key: before[key] for key in as_before if key not in given}}


def _with(config: Config, data: Mapping[str, Any], batch_tokens: int) -> Config:
    """Neither the budget nor the weights that training began with have a part in this."""
    budget = {"tokens": None, "steps": 1, "batch_tokens": batch_tokens}
    return validate(
        {**config.model_dump(mode="json"), "data": data, "budget": budget, "start": {"run": None}}
    )


def _composed_data(config: Config, overrides: Sequence[str]) -> dict[str, Any]:
    """The data of ``overrides``. Raises ConfigError where the model of ``config`` reads no such."""
    with started_hydra() as hydra:
        try:
            data = resolved(compose_unchecked(hydra, overrides).data)
        except ConfigError as error:
            problems, _ = refused(hydra, overrides, "config")
            raise ConfigError(*(problems or error.problems)) from None
    line = unreadable(config.model.family, data["source"])
    if line is not None:
        raise ConfigError(line)
    return data
