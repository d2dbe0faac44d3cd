"""The table of a reproduction: our rows, the paper's numbers beside them, times side by side."""

from collections.abc import Mapping, Sequence

from residual_lab.reproduce.arguments import Asked
from residual_lab.reproduce.paper import (
    SIGNIFICANT,
    difference_text,
    paper_difference,
    printed,
    verdict,
)
from residual_lab.reproduce.results import Results
from residual_lab.reproduce.table_file import Row, TableFile
from residual_lab.reproduce.timing import Timing
from residual_lab.tables.comparison import Comparison
from residual_lab.tables.comparison_table import ColumnOfCells, columns_of
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.notes import notes, one_thread
from residual_lab.tables.numbers import DASH, fixed, significant
from residual_lab.tables.table import Cell, Column, Table

_TIMES = ("step_time_s", "tokens_per_s", "mfu")  # of runs that were hours apart


def report_table(
    asked: Asked, found: Results, times: Timing | None, further: Sequence[str]
) -> Table:
    """One line a row of the file, in its order; ``further`` notes stand last."""
    table = asked.table
    metric = metric_named(table.metric)
    columns = columns_of(found.rows, metric, _TIMES)
    rows = {id(ours): row for ours, row in zip(found.rows, found.of_file, strict=True)}
    place = 1 + max(i for i, (c, _) in enumerate(columns) if c.key in (metric.key, "p"))
    columns[place:place] = _paper_columns(table, rows)
    if len({id(ours.baseline) for ours in found.rows if ours.baseline}) > 1:
        columns.insert(place, (Column("baseline", "compared with"), _baseline))
    columns += _time_columns(table, rows, times)
    return Table(
        table.title,
        tuple(column for column, _ in columns),
        tuple(tuple(cell(ours) for _, cell in columns) for ours in found.rows),
        tuple(_notes(asked, found, times, further)),
    )


def _paper_columns(table: TableFile, rows: Mapping[int, Row]) -> list[ColumnOfCells]:
    """What the paper printed, its difference, and whether ours agrees; none where it has none."""
    numbers = {key: printed(row, table.metric) for key, row in rows.items()}
    kinds = list(dict.fromkeys(number[0] for number in numbers.values() if number))
    if not kinds:
        return []

    def value(ours: Comparison) -> Cell:
        number = numbers[id(ours)]
        if number is None:
            return Cell(DASH)
        return Cell(number[1].text, number[1].value, {"error": number[1].error})

    def change(ours: Comparison) -> Cell:
        gap = paper_difference(table, rows[id(ours)])
        if gap is None:
            return Cell("" if ours.is_baseline else DASH)
        text = difference_text(gap, metric_named(table.metric))
        return Cell(text, gap.value, {"error": gap.error})

    def agrees(ours: Comparison) -> Cell:
        said = verdict(ours, paper_difference(table, rows[id(ours)]))
        return Cell(said, said)

    title = metric_title(kinds)
    return [
        (Column("paper", f"paper: {title}", "right"), value),
        (Column("paper_difference", "paper: Δ", "right"), change),
        (Column("verdict", "ours and the paper's"), agrees),
    ]


def metric_title(kinds: list[str]) -> str:
    return " or ".join(metric_named(kind).title for kind in kinds)


def _time_columns(
    table: TableFile, rows: Mapping[int, Row], times: Timing | None
) -> list[ColumnOfCells]:
    if times is None:
        return []

    def step(ours: Comparison) -> Cell:
        name = rows[id(ours)].name
        if name not in times.seconds:
            return Cell(DASH)
        seconds = times.step_time(name)
        return Cell(significant(1000 * seconds), seconds)

    def ratio(ours: Comparison) -> Cell:
        row = rows[id(ours)]
        base = row.baseline or table.baseline
        if row.name == base or not {row.name, base} <= times.seconds.keys():
            return Cell("" if row.name == base else DASH)
        found = times.ratio(row.name, base)
        low, high = fixed(found.low, 3), fixed(found.high, 3)
        details = {"low": found.low, "high": found.high, "n": found.n}
        return Cell(f"{fixed(found.median, 3)} [{low}, {high}]", found.median, details)

    return [
        (Column("bench_step_time_s", "step time [ms]", "right"), step),
        (Column("bench_ratio", "× baseline", "right"), ratio),
    ]


def _baseline(ours: Comparison) -> Cell:
    """Where rows have baselines of their own, which is this row's."""
    if ours.baseline is None:
        return Cell(DASH)
    label = "" if ours.is_baseline else ours.baseline.label
    return Cell(label, label)


def _notes(asked: Asked, found: Results, times: Timing | None, further: Sequence[str]) -> list[str]:
    table = asked.table
    lines = [f"Scale {asked.choices.scale}. Source of the paper's numbers: {table.source}."]
    if table.note:
        lines.append(table.note)
    if any(printed(row, table.metric) for row in found.of_file):
        lines.append(_about_the_paper(table))
    if found.missing:
        command = "the same command" if asked.only is None else f"without only={asked.only} it"
        lines.append(
            f"Not complete: {found.missing} of {found.planned} runs are missing; {command} "
            "runs them."
        )
    about_times = _about_times(times, asked.rounds)
    lines += notes(found.rows, found.runs, metric_named(table.metric), about_times)
    names = {row.name: asked.choices.shown_name(table, row) for row in found.of_file}
    lines += [f"{names[row.name]}: {row.note}" for row in found.of_file if row.note]
    lost = [
        ours.group.label
        for ours in found.rows
        if ours.group.finished and (ours.baseline is None or not ours.baseline.finished)
    ]
    if lost:
        lines.append(
            f"No difference, for the baseline did not finish or had other data: {', '.join(lost)}."
        )
    return [*lines, *further]


def _about_the_paper(table: TableFile) -> str:
    unit = ""
    if any("perplexity" in row.paper for row in table.rows) and table.metric != "perplexity":
        unit = " in nats (ln of its perplexities)"
    return (
        f"Paper: Δ{unit} to the same baseline. Same sign, opposite: our corrected p is below "
        f"{SIGNIFICANT}; not resolved: it is not. A printed difference within twice its printed "
        "error counts as none; not every paper prints one, or says what it is."
    )


def _about_times(times: Timing | None, rounds: int) -> str:
    if times is None:
        why = "" if rounds else " (rounds=0)"
        return f"Step times were not measured side by side{why}, so there are none here."
    batches = " or ".join(str(batch) for batch in sorted(set(times.batches.values())))
    return (
        f"Step times: training steps of a batch of {batches} on {one_thread(times.device)}, "
        f"all rows of a batch interleaved in one process, {times.rounds} rounds; medians, and the "
        "median ratio within a round with the 95% interval of a bootstrap over rounds."
    )
