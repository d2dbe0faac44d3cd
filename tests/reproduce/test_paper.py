"""Whether our runs say what a paper says."""

import pytest

from residual_lab.reproduce.paper import PaperDifference, difference_text, verdict
from residual_lab.tables.comparison import Comparison
from residual_lab.tables.grouping import Group
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.statistics import Difference


def ours(mean: float, p: float | None) -> Comparison:
    group = Group("row", {}, ())
    return Comparison(group, Group("base", {}, ()), Difference(mean, 0, 0, p, 5, "paired"), p)


@pytest.mark.parametrize(
    ("mean", "p", "printed", "error", "said"),
    [
        (-0.03, 0.01, -0.05, None, "same sign"),
        (0.03, 0.01, 0.05, None, "same sign"),
        (0.03, 0.01, -0.05, None, "opposite"),
        (-0.03, 0.05, -0.05, None, "not resolved"),
        (0.03, 0.9, -0.05, 0.01, "not resolved"),
        (-0.03, None, -0.05, None, "no evidence"),
        (-0.03, 0.01, -0.05, 0.03, "only we see one"),  # within twice its error
        (-0.03, 0.01, -0.06, 0.03, "same sign"),
        (-0.03, 0.01, 0.0, None, "only we see one"),
        (-0.03, 0.20, 0.0, None, "neither sees one"),
        (-0.03, 0.20, -0.05, 0.03, "neither sees one"),
    ],
)
def test_the_words(
    mean: float, p: float | None, printed: float, error: float | None, said: str
) -> None:
    assert verdict(ours(mean, p), PaperDifference(printed, error)) == said


def test_without_a_printed_number_nothing_is_said() -> None:
    assert verdict(ours(-0.03, 0.01), None) == ""


def test_differences_are_in_the_unit_of_the_screen() -> None:
    gap = PaperDifference(-0.0123, None)
    assert difference_text(gap, metric_named("test_loss")) == "−0.0123"
    assert difference_text(gap, metric_named("test_accuracy")) == "−1.23"
