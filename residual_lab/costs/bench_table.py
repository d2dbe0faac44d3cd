"""A bench as a table, and as JSON with the times of every round."""

import json
from pathlib import Path
from statistics import median

from residual_lab.config.schema import Config
from residual_lab.costs.bench import KINDS, Bench
from residual_lab.costs.timing import Ratio
from residual_lab.files import write_output
from residual_lab.measure.protocol import kind_of
from residual_lab.tables import Cell, Column, Table
from residual_lab.tables.notes import one_thread
from residual_lab.tables.numbers import DASH, fixed, significant, with_prefix

_TITLES = {"training": "Training step", "forward": "Forward", "decoding": "Decoding step"}
_CLOCKS = {"wall": "Times", "cpu": "CPU times of the process"}


def bench_table(found: Bench) -> Table:
    """One row a configuration: times, memory, and each as a ratio to the first row."""
    base = next(iter(found.measurements))
    kinds = [kind for kind in KINDS if any(kind in m.seconds for m in found.measurements.values())]
    columns = [Column("configuration", "Configuration"), Column("params", "Parameters", "right")]
    for kind in kinds:
        columns.append(Column(f"{kind}_s", f"{_TITLES[kind]} [ms]", "right"))
        columns.append(Column(f"{kind}_ratio", f"× {base}", "right"))
        if kind == "training":
            columns.append(Column("bound", "Bound", "right"))
    columns.append(Column("peak_memory_bytes", "Peak memory [GiB]", "right"))
    columns.append(Column("memory_ratio", f"× {base}", "right"))
    rows = tuple(tuple(_row(found, label, kinds)) for label in found.measurements)
    return Table("", tuple(columns), rows, _notes(found))


def _row(found: Bench, label: str, kinds: list[str]) -> list[Cell]:
    measured = found.measurements[label]
    cells = [Cell(label, label), Cell(significant(measured.parameters), measured.parameters)]
    for kind in kinds:
        cells += _times(measured.seconds.get(kind), found.ratio(label, kind))
        if kind == "training":
            bound = found.bound(label)
            work = {"flops": measured.work.flops, "bytes": measured.work.bytes}
            cells.append(Cell(DASH if bound is None else fixed(bound, 3), bound, work))
    memory, base = measured.peak_memory, found.base.peak_memory
    if memory is None or base is None:
        return [*cells, Cell(DASH), Cell(DASH)]
    return [
        *cells,
        Cell(significant(memory / 2**30), memory),
        Cell(fixed(memory / base, 3), memory / base),
    ]


def _times(seconds: list[float] | None, ratio: Ratio | None) -> list[Cell]:
    if seconds is None or ratio is None:
        return [Cell(DASH), Cell(DASH)]
    middle = median(seconds)
    text = f"{fixed(ratio.median, 3)} [{fixed(ratio.low, 3)}, {fixed(ratio.high, 3)}]"
    interval = {"low": ratio.low, "high": ratio.high, "rounds": ratio.n}
    return [Cell(significant(middle * 1e3), middle), Cell(text, ratio.median, interval)]


def _notes(found: Bench) -> tuple[str, ...]:
    config, rates = found.base.config, found.rates
    rounds = len(next(iter(found.base.seconds.values())))
    notes = [
        f"{one_thread(found.device)}, {config.hardware.precision}; {found.batch} "
        f"{_of_a_batch(config)}; {rounds} rounds, in each of which every configuration had its "
        "turn, in an order that moves on.",
        f"{_CLOCKS[found.clock]} are medians over rounds. Ratios are medians of the ratios within "
        "a round, with the 95% interval of a bootstrap over rounds.",
        "Bound: the least ratio of a training step in float32 at the speed measured beside it: "
        f"products at "
        f"{with_prefix(rates.flops_per_s)}FLOP/s, additions of activations at "
        f"{with_prefix(rates.bytes_per_s)}B/s.",
    ]
    if "forward" in found.base.seconds:
        notes.append("Forward: the loss of a batch without gradients.")
    if "decoding" in found.base.seconds:
        notes.append("Decoding step: one token of each sequence, the others being in the cache.")
    return tuple(notes)


def save_rounds(found: Bench, path: Path) -> None:
    """Write everything measured, every round, as JSON. Raises LabError if it cannot be written."""
    document = {
        "device": found.device,
        "batch": found.batch,
        "clock": found.clock,
        "flops_per_s": found.rates.flops_per_s,
        "bytes_per_s": found.rates.bytes_per_s,
        "configurations": {
            label: {
                "config": measured.config.model_dump(mode="json"),
                "params": measured.parameters,
                "peak_memory_bytes": measured.peak_memory,
                "flops": measured.work.flops,
                "bytes": measured.work.bytes,
                "seconds": measured.seconds,
            }
            for label, measured in found.measurements.items()
        },
    }
    write_output(path, json.dumps(document, indent=1) + "\n")


def _of_a_batch(config: Config) -> str:
    kind = kind_of(config.data.source)
    return f"sequences of {config.data.sequence_length} tokens" if kind == "tokens" else kind
