"""Which weighted sums over depth a forward takes, and of which sources."""

from collections.abc import Sequence
from typing import NamedTuple


class Sum(NamedTuple):
    """One of the sums that are taken after a step."""

    step: int
    output: int


class Schedule:
    """Which sums are taken after each step, and where their weights are stored.

    Weights are stored source by source: those of all sums that read x_0, by step and output,
    then those that read x_1, and so on.

    Args:
        rows: for each step, the sources that its sums read; none: no sum is taken after it.
        outputs: how many sums each step takes, all of the same sources.
        born: for each source the step that appends it, not decreasing; None: step j appends x_j.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[int]],
        outputs: Sequence[int] | None = None,
        born: Sequence[int] | None = None,
    ) -> None:
        born = range(len(rows)) if born is None else born
        outputs = [1] * len(rows) if outputs is None else outputs
        self.rows = [list(row) for row in rows]
        self.sums = [
            [Sum(step, output) for output in range(count if rows[step] else 0)]
            for step, count in enumerate(outputs)
        ]
        self.last_step = max(step for step, row in enumerate(rows) if row)  # with sums
        self.readers: list[list[Sum]] = [[] for _ in born]
        for row, sums in zip(self.rows, self.sums, strict=True):
            for source in row:
                self.readers[source] += sums
        self.last_read: list[list[int]] = [[] for _ in rows]  # sources that a step is the end of
        for source, readers in enumerate(self.readers):
            self.last_read[readers[-1].step if readers else born[source]].append(source)
        self.starts = [0]
        for readers in self.readers:
            self.starts.append(self.starts[-1] + len(readers))
        self.places = {
            (source, read): place
            for source, readers in enumerate(self.readers)
            for place, read in enumerate(readers)
        }
        self.numbers = {read: n for n, read in enumerate(s for sums in self.sums for s in sums)}

    @property
    def size(self) -> int:
        """How many weights there are: one for each source of each sum."""
        return self.starts[-1]

    @property
    def sum_count(self) -> int:
        return len(self.numbers)

    def index(self, source: int, step: int, output: int = 0) -> int:
        """Return where the weight of x_source in that sum is stored."""
        return self.starts[source] + self.places[source, Sum(step, output)]

    def span(self, source: int, shared: bool = False) -> slice:
        """Return where the weights of x_source are, or (``shared``) the sums that read it.

        Raises ValueError where those sums do not follow each other.
        """
        readers = self.readers[source]
        start = self.numbers[readers[0]] if shared and readers else self.starts[source]
        if shared and readers and self.numbers[readers[-1]] - start != len(readers) - 1:
            raise ValueError(f"the sums that read source {source} do not follow each other")
        return slice(start, start + len(readers))
