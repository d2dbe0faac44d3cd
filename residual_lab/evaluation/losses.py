"""The losses of a finished run, on its own validation and test sets or on those of other data."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils._pytree import tree_map

from residual_lab.config.composition import compose_unchecked, resolved, started_hydra
from residual_lab.config.data import TextDataConfig
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

_OF_THE_RUN = ("tokenizer", "vocabulary")


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
            here = tree_map(lambda tensor: tensor.to(trained.device), batch)
            for name, value in trained.model.evaluate(*inputs_and_targets(here)).items():
                means[name].add(value, predictions(here))
    return {
        name: float(mean.total) / mean.predictions
        for name, mean in means.items()
        if mean.total is not None
    }


def on_data(config: Config, overrides: Sequence[str], own: TokenizerFile) -> Config:
    """``config`` with the data that ``overrides`` (``data=text``, ``data.path=…``) ask for.

    Without ``data=`` they change the data of ``config``. Text is read with ``own``,
    the run's tokenizer; of the training set no more than one sequence is prepared. Raises
    ConfigError.
    """
    parsed, problems = parse(overrides)
    given = {override.key_or_group.removeprefix("data.") for override in parsed}
    problems += [
        f"data.{key}: a run reads text with its own tokenizer; leave this out"
        for key in _OF_THE_RUN
        if key in given
    ]
    if problems:
        raise ConfigError(*problems)
    before, composed = config.data.model_dump(mode="json"), _composed_data(overrides)
    if "data" in given:
        kept = ("sequence_length", "cache_dir", "workers")
        data = {**composed, **{key: before[key] for key in kept if key not in given}}
    else:
        data = {**before, **{key: composed[key] for key in given}}
    if "train_tokens" not in given:
        data["train_tokens"] = data["sequence_length"]
    data["tokenizer"], data["vocabulary"] = str(own.path), before["vocabulary"]
    # Neither the budget nor the weights that training began with have a part in this.
    budget = {"tokens": None, "steps": 1, "batch_tokens": data["sequence_length"]}
    return validate(
        {**config.model_dump(mode="json"), "data": data, "budget": budget, "start": {"run": None}}
    )


def _composed_data(overrides: Sequence[str]) -> dict[str, Any]:
    with started_hydra() as hydra:
        try:
            composed = resolved(compose_unchecked(hydra, overrides))
        except ConfigError as error:
            problems, _ = refused(hydra, overrides, "config")
            raise ConfigError(*(problems or error.problems)) from None
    data: dict[str, Any] = composed["data"]
    return data
