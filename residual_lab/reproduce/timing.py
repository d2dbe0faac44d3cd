"""Step times of a table's rows, measured together, interleaved in one process."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from residual_lab.config.schema import Config, StartConfig
from residual_lab.costs.arguments import sequences_per_device
from residual_lab.costs.timing import Ratio, ratio
from residual_lab.errors import LabError
from residual_lab.files import read_json, write_json
from residual_lab.run_directory import config_hash


@dataclass(frozen=True)
class Timing:
    """Seconds of a training step of each row, one value a round; ``hashes``: of what.

    Rows of equal ``batches``, sequences at a time, are measured together, in turns.
    """

    device: str
    batches: Mapping[str, int]
    rounds: int
    hashes: Mapping[str, str]
    seconds: Mapping[str, Sequence[float]]

    def step_time(self, row: str) -> float:
        return median(self.seconds[row])

    def ratio(self, row: str, base: str) -> Ratio:
        return ratio(self.seconds[row], self.seconds[base])


def timing(configs: Mapping[str, Config], file: Path, rounds: int) -> Timing | None:
    """The times in ``file`` if they are of these rows, otherwise measured anew and kept there.

    None of no rows. ``rounds`` 0: only what is there. Raises LabError for a file that cannot be
    read, and where the rows' device is not here.
    """
    if not configs:
        return None
    same = {name: _what_is_timed(config) for name, config in configs.items()}
    hashes = {name: config_hash(config) for name, config in same.items()}
    found = _kept(file)
    if found is not None and hashes.items() <= found.hashes.items() and found.rounds >= rounds:
        return found
    if not rounds:
        return None
    seconds: dict[str, Sequence[float]] = {}
    batches = {name: sequences_per_device(config) for name, config in same.items()}
    device = ""
    for batch in dict.fromkeys(batches.values()):
        names = [name for name in same if batches[name] == batch]
        distinct = {hashes[name]: same[name] for name in names}  # rows may be the same
        device, measured = _measured(distinct, batch, rounds)
        seconds |= {name: measured[hashes[name]] for name in names}
    found = Timing(device, batches, rounds, hashes, seconds)
    write_json(file, asdict(found))
    return found


def _measured(
    configs: Mapping[str, Config], batch: int, rounds: int
) -> tuple[str, dict[str, list[float]]]:
    """The device, and seconds by round of each."""
    from residual_lab.costs.bench import bench

    found = bench(configs, batch, rounds, ("training",))
    return found.device, {n: m.seconds["training"] for n, m in found.measurements.items()}


def _kept(file: Path) -> Timing | None:
    remedy = "remove it to measure again"
    plain = read_json(file, remedy)
    try:
        return None if plain is None else Timing(**plain)
    except TypeError as error:
        raise LabError(f"{file}: cannot be read ({error}); {remedy}") from None


def _what_is_timed(config: Config) -> Config:
    """A step takes the same time from whatever weights and seed, however many follow."""
    return config.model_copy(update={"seed": 0, "start": StartConfig()})
