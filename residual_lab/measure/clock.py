"""The training clock: it runs while the run trains and stops for everything else."""

from collections.abc import Callable
from time import perf_counter


class TrainingClock:
    """Seconds of training, over all processes that worked on a run one after another.

    ``synchronize`` waits for the device; it is called wherever the clock is read, so a reading
    includes the work queued so far.
    """

    def __init__(
        self, synchronize: Callable[[], None], now: Callable[[], float] = perf_counter
    ) -> None:
        self._synchronize, self._now = synchronize, now
        self.seconds = 0.0  # up to the last stop; set it to those of the processes before this one
        self._started: float | None = None

    def start(self) -> None:
        self._synchronize()
        self._started = self._now()

    def stop(self) -> None:
        self.seconds, self._started = self.read(), None

    def read(self) -> float:
        """Seconds trained so far."""
        if self._started is None:
            return self.seconds
        self._synchronize()
        return self.seconds + self._now() - self._started
