"""``residual-lab bench``: what connections cost on this machine, measured side by side."""

from pathlib import Path

from residual_lab.costs.arguments import Arguments
from residual_lab.errors import LabError
from residual_lab.files import check_writable
from residual_lab.tables import render
from residual_lab.tables.render import format_for

OPTIONS = ("batch", "rounds", "clock", "rounds_out", "format", "out")
BATCH, ROUNDS = 4, 20

USAGE = f"""\
usage: residual-lab bench [KEY=VALUE[,VALUE...]]... [batch=N] [rounds=N] [clock=CLOCK]
                          [format=FORMAT] [out=PATH] [rounds_out=PATH]

Time a training step, a forward pass and a decoding step of several configurations, without
data. All are in one process and take turns in every round, so that what drifts falls on all
alike; ratios are to the first, within a round. Peak memory is that of a training step.

KEY       overrides as of `residual-lab train`; for short also sequence=, precision=, threads=
batch     sequences at a time, default {BATCH}
rounds    default {ROUNDS}
CLOCK     wall (default); or cpu, the CPU time of this process, where others use the machine too
FORMAT    rich (default), md, csv, latex, json
out       write the table to this file
rounds_out  write what was measured, every round, to this file as JSON
--config-dir DIR  a folder of your own groups

example:
  residual-lab bench residual=plain,laurel_rw,laurel_lr model.layers=24 model.width=256 batch=2"""


def main(arguments: list[str]) -> int:
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    asked = Arguments.of(arguments, OPTIONS)
    batch = asked.whole_number("batch", BATCH)
    rounds = asked.whole_number("rounds", ROUNDS, least=2)
    assert batch is not None and rounds is not None
    clock = asked.options.get("clock", "wall")
    format_for(asked.options.get("format"), asked.options.get("out"))  # before the work
    if "rounds_out" in asked.options:
        check_writable(Path(asked.options["rounds_out"]))
    configurations = asked.configurations(batch)
    places = {c.hardware.accelerator for c in configurations.values()}
    if len(places) > 1:
        raise LabError(f"hardware: {', '.join(sorted(places))} together; compare on one device")
    threads = {str(c.hardware.threads) for c in configurations.values()}
    if len(threads) > 1:
        raise LabError(
            f"threads={','.join(sorted(threads))}: one process has one number of them; "
            "bench each by itself"
        )
    from residual_lab.costs.bench import bench
    from residual_lab.costs.bench_table import bench_table, save_rounds

    found = bench(configurations, batch, rounds, clock=clock)
    render(bench_table(found), asked.options.get("format"), asked.options.get("out"))
    if "rounds_out" in asked.options:  # last: a full disk costs the rounds, not the table too
        save_rounds(found, Path(asked.options["rounds_out"]))
    return 0
