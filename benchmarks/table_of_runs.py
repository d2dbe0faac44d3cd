"""``residual-lab table`` of a thousand runs: should take less than two seconds, start included.

    python benchmarks/table_of_runs.py [runs=N] [rounds=N]

The runs are copies, under further seeds, of those whose tables are in experiments/.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))

from residual_lab.cli import in_one_line
from residual_lab.costs.arguments import Arguments
from residual_lab.errors import LabError

CHECKOUT = Path(__file__).parent.parent
LIMIT = 2.0  # seconds


def copy_runs(folder: Path, number: int) -> None:
    """Copy the run directories, again and again, until there are ``number`` of them."""
    found = sorted(CHECKOUT.glob("experiments/*/results/*/runs/*/config.yaml"))
    runs = list({path.parent.name: path.parent for path in found}.values())
    for index in range(number):
        turn, run = index // len(runs), runs[index % len(runs)]
        copy = folder / str(turn) / run.name
        shutil.copytree(run, copy)
        config = copy / "config.yaml"
        first, _, rest = config.read_text().partition("\n")
        config.write_text(f"seed: {int(first.removeprefix('seed: ')) + 100 * turn}\n{rest}")


def main(arguments: Sequence[str]) -> int:
    asked = Arguments.of(arguments, ("runs", "rounds"))
    number, rounds = asked.whole_number("runs", 1000), asked.whole_number("rounds", 10)
    assert number is not None and rounds is not None
    if asked.overrides:
        raise LabError(f"{asked.overrides[0]}: nothing is composed here; give runs= and rounds=")
    with tempfile.TemporaryDirectory() as folder:
        copy_runs(Path(folder), number)
        command = [sys.executable, str(CHECKOUT / "cli.py"), "table", folder, "format=json"]
        seconds = []
        for _ in range(rounds):
            start = perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds.append(perf_counter() - start)
    print(
        f"table of {number} runs: {median(seconds):.2f} s "
        f"[{min(seconds):.2f}, {max(seconds):.2f}] of {rounds}; limit {LIMIT} s"
    )
    return int(median(seconds) > LIMIT)


if __name__ == "__main__":
    sys.exit(in_one_line(main, sys.argv[1:]))
