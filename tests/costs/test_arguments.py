"""Several configurations from one command line."""

import re

import pytest

from residual_lab.costs.arguments import Arguments, sequences_per_device
from residual_lab.errors import LabError

OWN = ("batch", "rounds", "format")


def test_own_options_short_names_and_overrides_are_told_apart() -> None:
    asked = Arguments.of(["batch=3", "sequence=64", "precision=bf16-mixed", "model=desk"], OWN)
    assert asked.options == {"batch": "3"}
    assert asked.overrides == (
        "data.sequence_length=64",
        "hardware.precision=bf16-mixed",
        "model=desk",
    )


def test_a_batch_takes_the_place_of_the_budget() -> None:
    asked = Arguments.of(["sequence=100", "hardware.accumulate=3", "hardware.devices=2"], OWN)
    (config,) = asked.configurations(5).values()
    assert sequences_per_device(config) == 5
    assert (config.steps, config.tokens) == (1, 100 * 5 * 3 * 2)


def test_a_key_with_a_plus_is_a_key() -> None:
    asked = Arguments.of(["++model.layers=2,3"], OWN)
    assert list(asked.configurations()) == ["plain layers=2", "plain layers=3"]


def test_labels_say_what_varies() -> None:
    asked = Arguments.of(["residual=plain,laurel_lr", "model.width=96", "model.layers=2,3"], OWN)
    found = asked.configurations()
    assert list(found) == [
        "plain layers=2",
        "plain layers=3",
        "laurel_lr layers=2",
        "laurel_lr layers=3",
    ]
    assert [config.model.layers for config in found.values()] == [2, 3, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["residual"], "residual: expected KEY=VALUE"),
        (["--batch"], "did you mean batch"),
        (["batch=0"], "batch=0: must be a whole number ≥ 1"),
        (["batch=2", "budget.steps=3"], "budget.* says how large a batch is too"),
        (["batch=2", "residual=plain,laurell"], "laurell"),
        (["batch=2", "model.heads=3,5"], "model.heads=5"),
        (["batch=2", "model.layers=1,1.5"], "model.layers=1.5: must be a whole number"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], message: str) -> None:
    with pytest.raises(LabError, match=re.escape(message)):
        asked = Arguments.of(arguments, OWN)
        asked.configurations(asked.whole_number("batch", None))
