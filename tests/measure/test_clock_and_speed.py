"""The training clock and what is made of its readings."""

import pytest

from residual_lab.measure.clock import TrainingClock
from residual_lab.measure.protocol import protocol_text
from residual_lab.measure.statistics import step_time_summary
from residual_lab.training.result import speed


class Time:
    """A clock that a test turns by hand, and a device whose work costs time when waited for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.queued = 0.0

    def now(self) -> float:
        return self.seconds

    def synchronize(self) -> None:
        self.seconds += self.queued
        self.queued = 0.0


def test_the_clock_stops_for_what_is_not_training() -> None:
    time = Time()
    clock = TrainingClock(time.synchronize, time.now)
    clock.start()
    time.seconds += 2
    clock.stop()
    time.seconds += 100  # validation
    clock.start()
    time.seconds += 3
    assert clock.read() == 5
    clock.stop()
    time.seconds += 100
    assert clock.read() == 5


def test_queued_work_is_waited_for() -> None:
    """What was queued before training is not training's; what training queued is."""
    time = Time()
    clock = TrainingClock(time.synchronize, time.now)
    time.queued = 7
    clock.start()
    time.queued = 4
    assert clock.read() == 4
    time.queued = 1
    clock.stop()
    assert clock.seconds == 5


def test_the_clock_goes_on_where_an_earlier_process_stopped() -> None:
    time = Time()
    clock = TrainingClock(time.synchronize, time.now)
    clock.seconds = 40.0
    clock.start()
    time.seconds += 2
    assert clock.read() == 42


def test_step_times() -> None:
    """numpy's linear percentile of 1, …, 11 at 0.9 is 10."""
    summary = step_time_summary([float(n) for n in range(11, 0, -1)])
    assert summary == {"median": 6.0, "p90": 10.0, "n": 11}
    assert step_time_summary([3.0]) == {"median": 3.0, "p90": 3.0, "n": 1}
    assert step_time_summary([]) == {"median": None, "p90": None, "n": 0}


def row(step: int, tokens_per_s: float | None) -> dict[str, float | None]:
    return {"step": step, "train_loss": 1.0, "tokens_per_s": tokens_per_s}


def test_tokens_per_second_times_seconds_are_the_tokens() -> None:
    """F22: windows of unequal length; the untimed ones count neither as tokens nor as seconds."""
    rows = [row(10, None), row(20, 100.0), {"step": 20, "val_loss": 1.0}, row(25, 50.0)]
    # 10 steps of 8 tokens in 0.8 s, 5 steps of 8 tokens in 0.8 s.
    found = speed(rows, since=0, batch_tokens=8)
    assert found["tokens_per_s"] == pytest.approx((80 + 40) / 1.6)
    assert found["step_time_s"] == {
        "median": pytest.approx((0.08 + 0.16) / 2),
        "p90": pytest.approx(0.152),
        "n": 2,
    }


def test_times_on_another_device_do_not_count() -> None:
    found = speed([row(10, 100.0), row(20, 50.0)], since=10, batch_tokens=8)
    assert found["tokens_per_s"] == 50
    assert speed([row(10, None)], since=0, batch_tokens=8)["tokens_per_s"] is None


def test_the_protocol_is_printed_with_the_numbers_of_the_run() -> None:
    text = protocol_text(warmup_steps=5, window_steps=10)
    assert "first 5 steps" in text
    assert "window of 10 steps" in text
    text = protocol_text(warmup_steps=1, window_steps=1)
    assert "The first step is warm-up" in text
    assert "window of 1 step;" in text
