"""The paper's numbers beside ours: its difference to the baseline, and whether ours agrees."""

import math
from dataclasses import dataclass

from residual_lab.reproduce.printed import Printed
from residual_lab.reproduce.table_file import Row, TableFile
from residual_lab.tables.comparison import Comparison
from residual_lab.tables.metrics import Metric
from residual_lab.tables.numbers import fixed

LOSSES = ("test_loss", "val_loss")
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class PaperDifference:
    """``row − baseline`` as the paper prints both; ``error``: its own uncertainty, if it has one.

    In nats where ours is: a printed perplexity enters with its logarithm.
    """

    value: float
    error: float | None


def printed(row: Row, metric: str) -> tuple[str, Printed] | None:
    """What the paper prints for the row of ``metric``: its key and the number.

    An accuracy, printed in percent, is a number between 0 and 1, as ours is.
    """
    keys = (metric, "perplexity", *LOSSES) if metric in LOSSES else (metric,)
    found = next(((key, Printed.of(row.paper[key])) for key in keys if key in row.paper), None)
    if found is not None and metric.endswith("accuracy"):
        return found[0], found[1].times(0.01)
    return found


def paper_difference(table: TableFile, row: Row) -> PaperDifference | None:
    """None where the paper prints no number for the row or its baseline, or in other units."""
    base = table.row(row.baseline or table.baseline)
    own, other = printed(row, table.metric), printed(base, table.metric)
    if row is base or own is None or other is None or own[0] != other[0]:
        return None
    in_nats = own[0] == "perplexity" and table.metric in LOSSES
    values = [math.log(p.value) if in_nats else p.value for _, p in (own, other)]
    errors = [
        None if p.error is None else p.error / p.value if in_nats else p.error
        for _, p in (own, other)
    ]
    known = [error for error in errors if error is not None]
    return PaperDifference(values[0] - values[1], math.hypot(*known) if known else None)


def difference_text(gap: PaperDifference, metric: Metric) -> str:
    """In the unit of the screen, with a sign."""
    return fixed(gap.value / metric.unit, metric.places, sign=True)


def verdict(ours: Comparison, paper: PaperDifference | None) -> str:
    """Whether our runs say what the paper says, in two words.

    ``same sign`` and ``opposite`` ask for a corrected p below 0.05; otherwise our runs do not
    resolve a difference. A printed difference within twice its own printed error counts as none.
    """
    if paper is None or ours.difference is None:
        return ""
    if ours.p is None:
        return "no evidence"
    none = paper.value == 0 or (paper.error is not None and abs(paper.value) < 2 * paper.error)
    if ours.p >= SIGNIFICANT:
        return "neither sees one" if none else "not resolved"
    if none:
        return "only we see one"
    return "same sign" if ours.difference.mean * paper.value > 0 else "opposite"
