"""Interleaving on a clock of our own, and ratios against numpy."""

from collections.abc import Callable

import numpy as np
import pytest

from residual_lab.costs.timing import Work, interleaved, ratio


class Clock:
    """Time passes only while work is done; a factor that grows stands for a machine that slows."""

    def __init__(self, drift: float = 0.0) -> None:
        self.time, self.drift = 0.0, drift
        self.done: list[str] = []

    def work(self, name: str, seconds: float) -> Callable[[], None]:
        def do() -> None:
            self.done.append(name)
            self.time += seconds * (1 + self.drift * self.time)

        return do

    def read(self) -> float:
        return self.time


def work_of(clock: Clock, **seconds: float) -> dict[str, Work]:
    return {name: clock.work(name, value) for name, value in seconds.items()}


def test_every_piece_has_its_turn_in_every_round_and_the_order_moves_on() -> None:
    clock = Clock()
    found = interleaved(work_of(clock, a=1, b=2, c=3), rounds=4, now=clock.read)
    assert found == {"a": [1] * 4, "b": [2] * 4, "c": [3] * 4}
    assert "".join(clock.done[-12:]) == "abcbcacababc"


def test_short_work_is_repeated_and_the_mean_is_of_one_call() -> None:
    clock = Clock()
    found = interleaved(work_of(clock, a=0.01, b=0.02), 3, at_least=0.05, now=clock.read)
    assert found["b"] == pytest.approx([0.02] * 3)
    assert clock.done[-10:].count("a") == 5


def test_drift_cancels_in_the_ratio() -> None:
    """The machine slows down ten times over; of one after the other the ratio would be far off."""
    clock = Clock(drift=0.002)
    found = interleaved(work_of(clock, base=1, same=1, twice=2), rounds=60, now=clock.read)
    assert found["base"][-1] > 1.5 * found["base"][0]
    assert ratio(found["same"], found["base"]).median == pytest.approx(1, abs=0.01)
    assert ratio(found["twice"], found["base"]).median == pytest.approx(2, abs=0.02)


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    covered = 0
    for _ in range(200):
        base = draw.uniform(1, 2, size=25)
        found = ratio(base * draw.lognormal(0.1, 0.05, size=25), base, resamples=300)
        assert found.low <= found.median <= found.high
        covered += found.low <= np.exp(0.1) <= found.high
    assert 0.88 <= covered / 200 <= 0.99
