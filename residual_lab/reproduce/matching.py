"""The depth of a deeper baseline that costs what a variant costs: a fair rival."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residual_lab.config.schema import Config
from residual_lab.errors import LabError
from residual_lab.files import write_atomically
from residual_lab.reproduce.plan import compose_rows, rows_of
from residual_lab.reproduce.timing import timing
from residual_lab.run_directory import config_hash

if TYPE_CHECKING:
    from residual_lab.reproduce.arguments import Asked


@dataclass(frozen=True)
class Matched:
    """``layers`` of each deeper baseline, and what the table says about them."""

    layers: Mapping[str, int]
    notes: tuple[str, ...]


def matched_layers(asked: "Asked") -> Matched:
    """Solve the depth of the rows that are ``deeper``, and keep it: a table re-run is the same.

    It is the least depth at which plain costs as much as the dearest other row of the baseline's
    depth. Raises LabError for a table without such rows.
    """
    table, key = asked.table, asked.match
    assert key is not None
    rows = rows_of(table, asked.choices)
    deeper = [row for row in rows if row.deeper]
    if not deeper:
        with_them = "no row of it is a deeper baseline"
        raise LabError(f"match={key}: {table.name}: {with_them}; leave match= out")
    configs = {n: config for n, (config, _) in compose_rows(table, rows, asked.choices).items()}
    base = configs[table.baseline]
    others = {
        row.name: configs[row.name]
        for row in rows
        if not row.deeper
        and row.name != table.baseline
        and _depth(configs[row.name]) == _depth(base)
    }
    if not others:
        raise LabError(f"match={key}: {table.name}: no variant of the baseline's depth")
    file = asked.out / "matched.json"
    question = {n: config_hash(c) for n, c in {**others, table.baseline: base}.items()} | {"": key}
    kept = _read(file)
    if kept.get("question") != question:
        cost = _step_time(base, others, asked) if key == "step_time" else _counted(key)
        kept = {"question": question, **asdict(_solve(base, others, cost, key))}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    depth = int(kept["depth"])
    return Matched({row.name: depth for row in deeper}, (str(kept["note"]),))


@dataclass(frozen=True)
class _Solution:
    depth: int
    note: str


def _solve(
    base: Config, others: Mapping[str, Config], cost: Callable[[Config], float], key: str
) -> _Solution:
    """Plain's cost is a line in its depth: through the baseline's and twice that."""
    costs = {name: cost(config) for name, config in others.items()}
    dearest = max(costs, key=lambda name: costs[name])
    layers, own = _depth(base), cost(base)
    slope = (cost(_with_layers(base, 2 * layers)) - own) / layers
    if slope <= 0:
        raise LabError(f"match={key}: more layers do not cost more here; match something else")
    depth = max(layers + 1, layers + math.ceil((costs[dearest] - own) / slope - 1e-9))
    reached = own + slope * (depth - layers)
    note = (
        f"Deeper baseline: {depth} layers, the least with at least the {key} of {dearest}: "
        f"{reached / own:.4f} of the baseline's, that row {costs[dearest] / own:.4f}."
    )
    return _Solution(depth, note)


def _counted(key: str) -> Callable[[Config], float]:
    import torch

    from residual_lab.measure.flops import flops_per_token
    from residual_lab.measure.parameters import count_parameters
    from residual_lab.models import build_model

    def params(config: Config) -> float:
        with torch.device("meta"):
            return count_parameters(build_model(config))["params"]

    return params if key == "params" else flops_per_token


def _step_time(base: Config, others: Mapping[str, Config], asked: "Asked") -> Callable[..., float]:
    """Of all at once, interleaved."""
    deep = _with_layers(base, 2 * _depth(base))
    configs = {**others, "baseline": base, "twice as deep": deep}
    found = timing(configs, Path(asked.out) / "matched_step_times.json", max(asked.rounds, 2))
    assert found is not None
    names = {config_hash(config): name for name, config in configs.items()}
    return lambda config: found.step_time(names[config_hash(config)])


def _depth(config: Config) -> int:
    return config.model.layers


def _with_layers(config: Config, layers: int) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update={"layers": layers})})


def _read(file: Path) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return plain
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise LabError(f"{file}: cannot be read ({error}); remove it to solve it again") from None
