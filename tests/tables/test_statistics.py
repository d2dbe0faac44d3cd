"""Statistics against scipy, published numbers and simulation."""

import random

import pytest
from scipy import stats

from residual_lab.tables.statistics import difference, holm, paired, spread, welch

ROW = [3.412, 3.398, 3.441, 3.405, 3.388]
BASELINE = [3.431, 3.425, 3.452, 3.436, 3.402]


def test_paired_test_is_that_of_scipy() -> None:
    ours, theirs = paired(ROW, BASELINE), stats.ttest_rel(ROW, BASELINE)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert (ours.test, ours.n) == ("paired", 5)


def test_welch_test_is_that_of_scipy() -> None:
    ours, theirs = welch(ROW, BASELINE[:3]), stats.ttest_ind(ROW, BASELINE[:3], equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert (ours.test, ours.n) == ("welch", 3)


def test_spread_is_mean_and_sample_standard_deviation() -> None:
    found = spread([1.0, 2.0, 3.0, 6.0])  # squared distances 4 + 1 + 0 + 9, over n − 1
    assert (found.mean, found.n) == (3.0, 4)
    assert found.std == pytest.approx((14 / 3) ** 0.5)
    assert spread([7.0]).std is None


def test_spread_of_equal_counts_is_the_count_itself() -> None:
    found = spread([157_204_992] * 3)
    assert (found.mean, found.std) == (157_204_992, 0.0)
    assert isinstance(found.mean, int)


def test_pairs_are_the_shared_seeds_whatever_their_order() -> None:
    found = difference({3: 1.0, 0: 2.0, 2: 3.0}, {0: 1.5, 2: 2.0, 9: 50.0})
    expected = stats.ttest_rel([2.0, 3.0], [1.5, 2.0])
    assert found is not None
    assert (found.n, found.test) == (2, "paired")
    assert found.p == pytest.approx(expected.pvalue)


def test_without_shared_seeds_the_test_is_welchs() -> None:
    found = difference({0: 1.0, 1: 1.2}, {2: 2.0, 3: 2.3})
    expected = stats.ttest_ind([1.0, 1.2], [2.0, 2.3], equal_var=False)
    assert found is not None
    assert found.test == "welch"
    assert found.p == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(
    ("row", "baseline", "mean"),
    [
        ({0: 1.0}, {0: 1.5}, -0.5),
        ({0: 1.0}, {0: 1.5, 1: 9.0}, -0.5),  # the shared seed, not the mean over all
        ({5: 1.0}, {0: 1.5, 1: 2.5}, -1.0),
    ],
)
def test_one_seed_is_no_evidence(
    row: dict[int, float], baseline: dict[int, float], mean: float
) -> None:
    found = difference(row, baseline)
    assert found is not None
    assert (found.mean, found.test) == (mean, "none")
    assert (found.low, found.high, found.p) == (None, None, None)


def test_no_values_no_difference() -> None:
    assert difference({}, {0: 1.0}) is None
    assert difference({0: 1.0}, {}) is None


def test_equal_rows_have_no_difference_at_all() -> None:
    found = paired(ROW, ROW)
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("gap", [0.25, 0.1])
def test_the_same_difference_at_every_seed_is_no_evidence(gap: float) -> None:
    """Accuracies are counts: with few seeds their differences may be equal by chance."""
    row = [0.5, 0.75, 0.625]
    for base in ([value - gap for value in row], [value + gap for value in row]):
        found = paired(row, base)
        assert abs(found.mean) == pytest.approx(gap)
        assert (found.low, found.high, found.p, found.n) == (None, None, None, 3)
    found = paired([0.5, 0.75, 0.625], [0.25, 0.5, 0.5])  # a spread, however small the counts
    assert found.p is not None and found.p > 0


def test_holm_gives_the_numbers_of_r() -> None:
    # p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") in R
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_false_positives_come_at_the_stated_rate() -> None:
    """4,000 tables of four rows that are all the baseline, five seeds: level 5%.

    A seed moves all rows of a table alike (so pairing must cancel it), and each row a little
    by itself. Bounds are four standard errors of a rate of 5% in 4,000: ± 1.4%.
    """
    draw = random.Random(0)
    single = covered = any_paired = 0
    tables = 4000
    for _ in range(tables):
        shared = [draw.gauss(3.4, 0.03) for _ in range(5)]
        rows = [[value + draw.gauss(0, 0.004) for value in shared] for _ in range(5)]
        found = [paired(row, rows[0]) for row in rows[1:]]
        p_values = [gap.p for gap in found if gap.p is not None]
        single += p_values[0] < 0.05
        any_paired += min(holm(p_values)) < 0.05
        assert found[0].low is not None and found[0].high is not None
        covered += found[0].low <= 0 <= found[0].high
    assert 0.036 < single / tables < 0.064
    assert 0.936 < covered / tables < 0.964
    # Holm keeps the chance of any at 5%; rows share their baseline, so it lies somewhat below.
    assert 0.02 < any_paired / tables < 0.064


def test_welch_keeps_its_rate_with_unequal_spreads() -> None:
    draw = random.Random(1)
    tables = 4000
    positives = 0
    for _ in range(tables):
        row = [draw.gauss(0, 1) for _ in range(5)]
        baseline = [draw.gauss(0, 3) for _ in range(8)]
        p = welch(row, baseline).p
        assert p is not None
        positives += p < 0.05
    assert 0.036 < positives / tables < 0.064
