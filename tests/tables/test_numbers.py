"""Numbers as text."""

import pytest

from residual_lab.tables.numbers import (
    interval_text,
    mean_and_deviation,
    percentage,
    probability,
    significant,
    with_prefix,
)
from residual_lab.tables.statistics import Spread


@pytest.mark.parametrize(
    ("spread", "text"),
    [
        (Spread(3.421583, 0.003142, 5), "3.4216 ± 0.0031"),
        (Spread(3.421583, 0.0314, 5), "3.422 ± 0.031"),
        (Spread(8205.8, 56.3, 5), "8,206 ± 56"),
        (Spread(20480.4, 1234.0, 5), "20,480 ± 1,234"),
        (Spread(3.4, None, 1), "3.400"),
        (Spread(157204992, 0.0, 3), "157,204,992"),
    ],
)
def test_a_mean_has_as_many_digits_as_its_deviation_supports(spread: Spread, text: str) -> None:
    assert mean_and_deviation(spread) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00012345, "0.0001234"),
        (12.3456, "12.35"),
        (-1.5, "−1.500"),
        (8192.7, "8,193"),
    ],
)
def test_significant_digits(value: float, text: str) -> None:
    assert significant(value) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (0.0, "0.00%"),
        (0.0075, "+0.75%"),
        (0.123, "+12.3%"),
        (-0.0214, "−2.1%"),
        (3e-7, "< +0.01%"),
        (-3e-7, "< −0.01%"),
    ],
)
def test_percentages(change: float, text: str) -> None:
    assert percentage(change) == text


@pytest.mark.parametrize(
    ("p", "text"), [(0.0002, "< 0.001"), (0.0123, "0.012"), (0.4182, "0.42"), (1.0, "1.00")]
)
def test_probabilities(p: float, text: str) -> None:
    assert probability(p) == text


def test_prefixes() -> None:
    assert with_prefix(943_218_432) == "943.218 M"
    assert with_prefix(512) == "512"


def test_tiny_numbers_keep_their_digits() -> None:
    assert mean_and_deviation(Spread(1.34e-5, 6.1e-6, 3)) == "1.3e−5 ± 6.1e−6"
    assert mean_and_deviation(Spread(0.0013, 0.0002, 3)) == "0.00130 ± 0.00020"
    assert interval_text(7e-5, -4e-5, 1.9e-4) == "+7.0e−5 [−4.0e−5, +1.9e−4]"
    assert interval_text(-0.0261, -0.0352, -0.0170) == "−0.0261 [−0.0352, −0.0170]"
    assert interval_text(0.0) == "0.0000"
