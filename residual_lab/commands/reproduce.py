"""``residual-lab reproduce``: a table of a paper, run and printed beside the paper's numbers."""

from residual_lab.errors import LabError
from residual_lab.reproduce.arguments import GRID, MATCH, ROUNDS, sort_arguments
from residual_lab.reproduce.table_file import SCALES, load_table, table_names
from residual_lab.tables import FORMATS, Table, render
from residual_lab.tables.render import format_for

USAGE = f"""\
usage: residual-lab reproduce [TABLE [scale=SCALE] [KEY=VALUE]...]

Run what is missing of a paper's table, then write the table beside the paper's numbers, a report
and pictures. Without TABLE: list the tables. The same command goes on where it was stopped.

TABLE     as the list has it, laurel/c4_ablation; or a file of your own, path/to/TABLE.yaml
SCALE     desk (default; CPU cores), gpu (hours on one), paper (the paper's model, data, hardware)
seeds     how many (seeds=5) or which (seeds=0,7); default: those of the scale
rows      only these rows, by name, and what they are compared with: rows="LAuReL-RW,LAuReL-LR"
only      estimate: parameters, FLOPs and memory, nothing is trained; table: of what is there
tune=lr   every row at the same multiples of its learning rate, each reported at its best
grid      those multiples, default {",".join(map(str, GRID))}
match     {", ".join(MATCH)}: the deeper baselines get the depth at which they cost what the
          dearest variant costs
jobs      runs at the same time, default 1 (needs the joblib extra); for clusters give
          hydra/launcher=submitit_slurm or ray and its settings
rounds    of the step times, default {ROUNDS}; 0: do not measure them
FORMAT    of the table on screen: {", ".join(FORMATS)}
out       the folder of table, report, pictures and the runs' small files; default
          results/TABLE-SCALE, with -tune_lr or -match_KEY; with only=estimate a file
further ones are overrides of every run, as of `residual-lab train`: run.dir=, logger=wandb, ...

examples:
  residual-lab reproduce laurel/c4_ablation
  residual-lab reproduce laurel/c4_ablation scale=paper only=estimate
  residual-lab reproduce denseformer/main jobs=2 seeds=3 logger=wandb

Exit status: as of a sweep (docs/sweeps.md)."""


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    names = [argument for argument in arguments if "=" not in argument]
    if not names:
        options = dict(argument.split("=", 1) for argument in arguments)
        if other := next((key for key in options if key not in ("format", "out")), None):
            raise LabError(f"{other}={options[other]}: of which table? name one of the list")
        render(list_tables(), options.get("format"), options.get("out"))
        return 0
    if len(names) > 1:
        raise LabError(f"{names[1]}: one table at a time; {names[0]} is the first")
    asked = sort_arguments(names[0], [argument for argument in arguments if "=" in argument])
    if asked.only == "estimate":
        from residual_lab.reproduce.estimates import estimates

        format_for(asked.format, asked.out_given)  # before the work
        render(estimates(asked), asked.format, asked.out_given)
        return 0
    from residual_lab.reproduce.reproduction import reproduce

    status, table = reproduce(asked)
    if table is not None:
        render(table, asked.format)
    return status


def list_tables() -> Table:
    """Every table with its size; times are those of its scales, for one run at a time."""
    rows = []
    for name in table_names():
        table = load_table(name)
        scales = [table.scales[scale] for scale in SCALES]
        times = [
            _duration(None if s.minutes is None else s.minutes * s.seeds * len(table.rows))
            for s in scales
        ]
        seeds = " / ".join(str(scale.seeds) for scale in scales)
        rows.append([name, table.title, str(len(table.rows)), seeds, " / ".join(times)])
    order = " / ".join(SCALES)
    return Table.of_text(
        "",
        ["Table", "Title", "Rows", f"Seeds: {order}", f"Time: {order}"],
        rows,
        "Times: all rows and seeds, one run after the other, on the hardware that a scale names.",
        "residual-lab reproduce TABLE scale=desk runs one.",
    )


def _duration(minutes: float | None) -> str:
    if minutes is None:
        return "?"
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 6000 else f"{minutes / 1440:.0f} d"
