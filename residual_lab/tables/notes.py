"""What stands under a comparison table: how the numbers came about and what to beware of."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from residual_lab.measure.protocol import (
    NATS,
    NATS_PER_IMAGE,
    SQUARED_ERROR,
    kind_of,
    protocol_text,
)
from residual_lab.tables.comparison import Comparison, by_seed
from residual_lab.tables.metrics import Metric, lookup
from residual_lab.tables.runs import Run

WELCH, SURVIVORS = "†", "‡"
STEP_TIMES = "Step times are each run's own, not taken side by side: a busy machine blurs them."


def notes(
    rows: Sequence[Comparison], read: Sequence[Run], metric: Metric, times: str = STEP_TIMES
) -> list[str]:
    """One sentence a line. ``read`` are all runs that were read, unfinished ones too.

    ``times`` says where step times come from.
    """
    runs = [run for row in rows for run in row.group.runs]
    return [
        *_statistics(rows, metric),
        *_marks(rows),
        *_left_out(read, len({run.path for run in runs})),
        *_setting(runs),
        *_data(rows),
        *_measuring(runs),
        times,
    ]


def _statistics(rows: Sequence[Comparison], metric: Metric) -> list[str]:
    lines = ["Mean ± standard deviation over seeds."]
    names = dict.fromkeys(row.baseline.label for row in rows if row.baseline)
    tested = sum(row.p is not None for row in rows)
    if names:
        lines[0] += (
            f" Δ: difference to {' or '.join(names)}, paired by seed, with its 95% t-interval"
        )
        if tested:
            corrected = f", corrected for {tested} rows (Holm)" if tested > 1 else ""
            lines[0] += f"; p: two-sided paired t-test{corrected}"
        lines[0] += "."
    else:
        lines[0] += " No row is plain, so there are no differences; baseline=ROW names another."
    alone = [row.group.label for row in rows if row.baseline is None]
    if names and alone:
        lines.append(f"No baseline on the same data: {', '.join(alone)}.")
    untested = {row.difference.n for row in rows if row.difference and row.difference.p is None}
    if 1 in untested:
        lines.append("No evidence: a single seed cannot tell a difference from noise.")
    if untested - {1}:
        lines.append(
            "No spread: the difference is the same at every seed, so nothing says how noisy."
        )
    without = [row.group.label for row in rows if not by_seed(row.group, metric)]
    if without:
        lines.append(f"No {metric.title}: {', '.join(without)}.")
    return lines


def _marks(rows: Sequence[Comparison]) -> list[str]:
    lines = []
    if any(row.difference and row.difference.test == "welch" for row in rows):
        lines.append(f"{WELCH} Fewer than two seeds shared with the baseline: Welch's t-test.")
    if any(0 < len(row.group.finished) < len(row.group.runs) for row in rows):
        lines.append(
            f"{SURVIVORS} Runs were lost: mean, Δ and p speak of those that finished only,"
            " which flatters an unstable row."
        )
    return lines


def _left_out(read: Sequence[Run], shown: int) -> list[str]:
    unfinished = [run.path.name for run in read if run.status == "unfinished"]
    lines = []
    if unfinished:
        names = ", ".join(unfinished[:3]) + (", ..." if len(unfinished) > 3 else "")
        lines.append(f"Left out, not finished: {len(unfinished)} ({names}).")
    copies = len(read) - len(unfinished) - shown
    if copies:
        lines.append(f"Left out, same configuration and seed as a later run: {copies}.")
    return lines


def _setting(runs: Sequence[Run]) -> list[str]:
    """Model and budget."""
    model = _distinct(run.config["model"].get("name") for run in runs)
    finished = [run for run in runs if run.status == "finished"] or runs
    tokens = _distinct(run.result.get("tokens") for run in finished)
    steps = _distinct(run.result.get("steps") for run in finished)
    unit = " and ".join(sorted({kind_of(_source(run)) for run in runs}))
    return [f"Scale: model {model}; budget {tokens} {unit} in {steps} optimizer steps."]


def _data(rows: Sequence[Comparison]) -> list[str]:
    """Fingerprints by name; a warning where those of one and the same setting differ."""
    prints: dict[str, dict[Hashable, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        for run in row.group.runs:
            if run.result.get("data_fingerprint"):
                setting = prints[str(run.config["data"]["name"])][row.group.data]
                setting.add(str(run.result["data_fingerprint"]))
    lines = []
    for name, settings in sorted(prints.items()):
        line = f"Data: {name}, fingerprint {_distinct(set().union(*settings.values()))}."
        if any(len(found) > 1 for found in settings.values()):
            line += " It changed between runs: differences between them may come from the data."
        lines.append(line)
    return lines


def _measuring(runs: Sequence[Run]) -> list[str]:
    """Hardware, software and protocol, with a warning where they differ between runs."""
    device = one_thread(_distinct(run.result.get("device") for run in runs))
    precision = _distinct(_precision(run) for run in runs)
    kind = _distinct(lookup(run.result, ("peak_memory_bytes", "kind")) for run in runs)
    versions = _distinct(run.result.get("versions") for run in runs)
    commit = _distinct(_commit(run) for run in runs)
    windows = set()
    for run in runs:
        measure = run.config.get("measure", {})
        if "warmup_steps" in measure and "window_steps" in measure:
            loss = _PROTOCOLS[kind_of(_source(run))]
            windows.add((measure["warmup_steps"], measure["window_steps"], loss))
    protocols = [protocol_text(*window) for window in sorted(windows)]
    return [
        f"Hardware: {device}; precision {precision}; peak memory is {kind}.",
        f"Versions: {versions}; commit {commit}.",
        *(f"Measured: {' '.join(text.split())}" for text in protocols),
    ]


_PROTOCOLS = {"tokens": NATS, "images": NATS_PER_IMAGE, "examples": SQUARED_ERROR}


def _source(run: Run) -> str:
    return str(run.config["data"].get("source"))


def one_thread(device: str) -> str:
    """The device of a result as a reader wants it; results are compared by what they say."""
    return device.replace("(1 threads)", "(1 thread)")


def _precision(run: Run) -> str | None:
    """What ``auto`` came to; results of an older version do not say it."""
    asked: str | None = run.config.get("hardware", {}).get("precision")
    return run.result.get("precision", asked)


def _commit(run: Run) -> str | None:
    git = run.result.get("git")
    if not git:
        return None
    return str(git["commit"])[:12] + (" with uncommitted changes" if git.get("dirty") else "")


def _distinct(values: Iterable[Any]) -> str:
    """The values in words, each once; after three, how many more there are."""
    found = sorted({_in_words(value) for value in values if value is not None})
    if len(found) > 3:
        found = [*found[:3], f"{len(found) - 3} more"]
    return " and ".join(found) or "unknown"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {entry}" for key, entry in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
