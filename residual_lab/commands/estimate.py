"""``residual-lab estimate``: parameters, FLOPs and memory of a training step, at any size."""

from collections.abc import Mapping

from residual_lab.config.schema import Config
from residual_lab.costs.arguments import Arguments
from residual_lab.tables import Cell, Column, Table, render
from residual_lab.tables.numbers import significant, with_prefix
from residual_lab.tables.render import format_for

OPTIONS = ("batch", "format", "out")

USAGE = """\
usage: residual-lab estimate [KEY=VALUE[,VALUE...]]... [batch=N] [format=FORMAT] [out=PATH]

What a configuration costs to train, without the hardware that it needs: nothing is computed
and nothing is allocated. Several values of a key give every combination, a row each.

KEY       overrides as of `residual-lab train`; for short also sequence=, precision=, threads=
batch     sequences per device and micro-batch; default: the configuration's own
FORMAT    rich (default), md, csv, latex, json
PATH      write the table to this file
--config-dir DIR  a folder of your own groups

example:
  residual-lab estimate model=nanodo_157m residual=plain,laurel_rw model.layers=24,28 \\
      batch=16 sequence=512 precision=bf16-mixed"""

KINDS = ("weights", "gradients", "optimizer", "activations", "total")


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    asked = Arguments.of(arguments, OPTIONS)
    format_for(asked.options.get("format"), asked.options.get("out"))  # before the work
    configurations = asked.configurations(asked.whole_number("batch", None))
    table = _table(configurations)
    render(table, asked.options.get("format"), asked.options.get("out"))
    return 0


def _table(configurations: Mapping[str, Config]) -> Table:
    from residual_lab.costs.estimate import estimate

    rows: list[tuple[Cell, ...]] = []
    batches: dict[str, None] = {}
    precisions: dict[str, None] = {}
    for label, config in configurations.items():
        found = estimate(config)
        batches[f"{found.batch} × {config.data.sequence_length}"] = None
        precisions[found.precision] = None
        memory = (getattr(found.memory, kind) for kind in KINDS)
        rows.append(
            (
                Cell(label, label),
                Cell(significant(found.parameters), found.parameters),
                Cell(significant(found.connection_parameters), found.connection_parameters),
                Cell(with_prefix(found.flops_per_token), found.flops_per_token),
                *(Cell(significant(size / 2**30), size) for size in memory),
            )
        )
    columns = (
        Column("configuration", "Configuration"),
        Column("params", "Parameters", "right"),
        Column("params_connection", "in connection", "right"),
        Column("flops_per_token", "FLOPs/token", "right"),
        *(Column(f"{kind}_bytes", f"{kind.title()} [GiB]", "right") for kind in KINDS),
    )
    return Table("", columns, tuple(rows), _notes(list(batches), list(precisions)))


def _notes(batches: list[str], precisions: list[str]) -> tuple[str, ...]:
    return (
        f"Per device: {', '.join(batches)} tokens at a time, {', '.join(precisions)}.",
        "FLOPs: forward and backward, an addition and a multiplication being two.",
        "Memory: what lives at the peak of a training step; an allocator's rounding and the "
        "workspaces inside kernels come on top.",
    )
