"""What each row of a table costs, counted without its hardware, beside what the paper printed."""

from residual_lab.reproduce.arguments import Asked
from residual_lab.reproduce.matching import matched
from residual_lab.reproduce.plan import Choices, compose_rows, rows_of
from residual_lab.reproduce.printed import Printed
from residual_lab.reproduce.table_file import Row, TableFile
from residual_lab.tables.numbers import DASH, significant, with_prefix
from residual_lab.tables.table import Cell, Column, Table

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
    for row in rows:
        config, _ = composed[row.name]
        found = estimate(config)
        batches[f"{found.batch} × {config.data.sequence_length}, {found.precision}"] = None
        printed = Printed.of(row.paper["params"]) if "params" in row.paper else None
        lines.append(
            (
                Cell(name := choices.shown_name(table, row), name),
                Cell(significant(found.parameters), found.parameters),
                *_beside(found.parameters, printed if choices.scale == "paper" else None),
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


def _beside(parameters: int, printed: Printed | None) -> tuple[Cell, Cell]:
    if printed is None:
        return Cell(DASH), Cell("")
    how = printed.matches(parameters)
    said = {"rounded": "yes", "truncated": "yes, cut off", None: "no: see the note"}[how]
    return Cell(printed.text, printed.value), Cell(said, how)


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
