"""Step times of a table's rows, measured together, interleaved in one process."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from residual_lab.config.schema import Config, StartConfig
from residual_lab.costs.timing import Ratio, ratio
from residual_lab.errors import LabError
from residual_lab.files import write_atomically
from residual_lab.run_directory import config_hash


@dataclass(frozen=True)
class Timing:
    """Seconds of a training step of each row, one value a round; ``hashes``: of what."""

    device: str
    batch: int
    rounds: int
    hashes: Mapping[str, str]
    seconds: Mapping[str, Sequence[float]]

    def step_time(self, row: str) -> float:
        return median(self.seconds[row])

    def ratio(self, row: str, base: str) -> Ratio:
        return ratio(self.seconds[row], self.seconds[base])


def timing(configs: Mapping[str, Config], file: Path, rounds: int) -> Timing | None:
    """The times in ``file`` if they are of these rows, otherwise measured anew and kept there.

    ``rounds`` 0: only what is there. Raises LabError for a file that cannot be read.
    """
    same = {name: _what_is_timed(config) for name, config in configs.items()}
    hashes = {name: config_hash(config) for name, config in same.items()}
    found = read_timing(file)
    if found is not None and found.hashes == hashes and found.rounds >= rounds:
        return found
    if not rounds:
        return None
    from residual_lab.costs.arguments import sequences_per_device
    from residual_lab.costs.bench import bench

    distinct = {hashes[name]: config for name, config in same.items()}  # rows may be the same
    batch = sequences_per_device(next(iter(same.values())))
    measured = bench(distinct, batch, rounds, ("training",))
    found = Timing(
        device=measured.device,
        batch=batch,
        rounds=rounds,
        hashes=hashes,
        seconds={name: measured.measurements[hashes[name]].seconds["training"] for name in configs},
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n")
    return found


def read_timing(file: Path) -> Timing | None:
    try:
        plain: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Timing(**plain)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise LabError(f"{file}: cannot be read ({error}); remove it to measure again") from None


def _what_is_timed(config: Config) -> Config:
    """A step takes the same time from whatever weights and seed, however many follow."""
    return config.model_copy(update={"seed": 0, "start": StartConfig()})
