"""What each row of a table costs, counted without its hardware, beside what the paper printed."""

from residual_lab.reproduce.arguments import Asked
from residual_lab.reproduce.matching import matched
from residual_lab.reproduce.plan import Choices, compose_rows, rows_of
from residual_lab.reproduce.printed import Printed
from residual_lab.reproduce.table_file import Row, TableFile
from residual_lab.tables.numbers import DASH, percentage, significant, with_prefix
from residual_lab.tables.table import Cell, Column, Table

ADDED = "added_parameters"  # what a row has more than its baseline, in percent
KINDS = ("weights", "gradients", "optimizer", "activations", "total")


def estimates(asked: Asked) -> Table:
    """Parameters, FLOPs and memory of a training step, a line a row."""
    from residual_lab.costs.estimate import estimate

    table, choices = asked.table, asked.choices
    solved: tuple[str, ...] = ()
    if asked.match is not None:
        choices, solved = matched(asked)
    rows = rows_of(table, choices)
    composed = compose_rows(table, rows, choices)
    lines = []
    batches: dict[str, None] = {}
    counted = {name: estimate(config) for name, (config, _) in composed.items()}
    for row in rows:
        found, base = counted[row.name], counted[row.baseline or table.baseline]
        data = composed[row.name][0].data
        batches[f"{found.batch} × {data.sequence_length}, {found.precision}"] = None
        lines.append(
            (
                Cell(name := choices.shown_name(table, row), name),
                _parameters(found.parameters, base.parameters),
                *_beside(row, found.parameters, base.parameters, choices.scale),
                Cell(significant(found.connection_parameters), found.connection_parameters),
                Cell(with_prefix(found.flops_per_token), found.flops_per_token),
                *(
                    Cell(significant(size / 2**30), size)
                    for size in (getattr(found.memory, kind) for kind in KINDS)
                ),
                Cell(row.paper.get("peak_memory", DASH)),
            )
        )
    columns = (
        Column("row", "row"),
        Column("params", "params", "right"),
        Column("paper_params", "paper: params", "right"),
        Column("params_match", "equal to its last digit"),
        Column("params_connection", "in connection", "right"),
        Column("flops_per_token", "FLOPs/token", "right"),
        *(Column(f"{kind}_bytes", f"{kind} [GiB]", "right") for kind in KINDS),
        Column("paper_peak_memory", "paper: peak memory", "right"),
    )
    return Table(
        table.title,
        columns,
        tuple(lines),
        (*_notes(table, rows, choices, batches), *solved, f"Command: {asked.command}"),
    )


def _parameters(own: int, base: int) -> Cell:
    more = f" ({percentage(own / base - 1)})" if own != base else ""
    return Cell(significant(own) + more, own)


def _beside(row: Row, own: int, base: int, scale: str) -> tuple[Cell, Cell]:
    """What the paper prints of the parameters, or of the share that a row adds to its baseline."""
    key = next((key for key in ("params", ADDED) if key in row.paper), None)
    if key is None or scale != "paper":
        return Cell(DASH), Cell("")
    printed = Printed.of(row.paper[key])
    how = printed.matches(own if key == "params" else 100 * (own / base - 1))
    said = {"rounded": "yes", "truncated": "yes, cut off", None: "no: see the note"}[how]
    text = printed.text if key == "params" else f"+{printed.text}"
    return Cell(text, printed.value), Cell(said, how)


def _notes(
    table: TableFile, rows: list[Row], choices: Choices, batches: dict[str, None]
) -> tuple[str, ...]:
    return (
        f"Scale {choices.scale}. Source of the paper's numbers: {table.source}.",
        f"Counted, not measured. Per device: {'; '.join(batches)}. FLOPs: forward and backward, an "
        "addition and a multiplication being two. Memory: what lives at the peak of a training "
        "step; an allocator's rounding and the workspaces inside kernels come on top.",
        *([table.note] if table.note else []),
        *(f"{choices.shown_name(table, row)}: {row.note}" for row in rows if row.note),
    )
