"""The depth of a deeper baseline that costs what a variant costs: a fair rival."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from residual_lab.config.schema import Config
from residual_lab.errors import LabError
from residual_lab.files import read_json, write_json
from residual_lab.reproduce.arguments import Asked
from residual_lab.reproduce.plan import Choices, compose_rows, rows_of
from residual_lab.reproduce.timing import timing
from residual_lab.run_directory import config_hash


def matched(asked: Asked) -> tuple[Choices, tuple[str, ...]]:
    """Choices in which the deeper baseline has the solved depth, and what the table says of it.

    It is the least depth at which plain costs as much as the dearest other row of the baseline's
    depth. Where a table has several deeper baselines, the first of them is it and the others are
    left out, but for those that rows are compared with: these stay what they are.
    Raises LabError for a table without a row that may be solved.
    """
    table, key, choices = asked.table, asked.match, asked.choices
    assert key is not None
    rows = rows_of(table, choices)
    needed = {name for row in rows for name in (row.baseline, row.after, table.baseline)}
    deeper = [row for row in rows if row.deeper and row.name not in needed]
    if not deeper:
        raise LabError(f"match={key}: {table.name} has no deeper baseline to solve; leave it out")
    configs = {n: config for n, (config, _) in compose_rows(table, rows, choices).items()}
    base = configs[table.baseline]
    if "layers" not in type(base.model).model_fields:
        raise LabError(
            f"match={key}: a {base.model.family} has no model.layers to solve; leave it out, set "
            "model.stages of the deeper row by hand"
        )
    others = {
        row.name: configs[row.name]
        for row in rows
        if not row.deeper
        and row.name != table.baseline
        and _depth(configs[row.name]) == _depth(base)
    }
    if not others:
        raise LabError(f"match={key}: {table.name} has no variant of the baseline's depth")
    depth, note = _kept_or_solved(base, others, asked, key)
    first, *rest = (row.name for row in deeper)
    solved = replace(
        choices,
        layers={first: depth},
        names={first: f"Baseline, {depth} layers ({key.replace('_', ' ')} matched)"},
        left_out=tuple(rest),
    )
    left = (f"Left out, other depths: {', '.join(rest)}.",) if rest else ()
    return solved, (note, *left)


def _kept_or_solved(
    base: Config, others: Mapping[str, Config], asked: Asked, key: str
) -> tuple[int, str]:
    """A table that is run again has the same depth, although step times differ."""
    file = asked.out / "matched.json"
    question = {n: config_hash(c) for n, c in {**others, "": base}.items()} | {"key": key}
    counts = asked.only == "estimate"  # then ``out`` is a file of its own
    kept = None if counts else read_json(file, "remove it to solve it again")
    if kept is None or kept.get("question") != question:
        cost = _step_time(base, others, asked) if key == "step_time" else _counted(key)
        depth, note = _solve(base, others, cost, key)
        kept = {"question": question, "depth": depth, "note": note}
        if asked.only is None:
            write_json(file, kept)
    return int(kept["depth"]), str(kept["note"])


def _solve(
    base: Config, others: Mapping[str, Config], cost: Callable[[Config], float], key: str
) -> tuple[int, str]:
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
    return depth, note


def _counted(key: str) -> Callable[[Config], float]:
    import torch

    from residual_lab.measure.flops import flops_per_token
    from residual_lab.measure.parameters import count_parameters
    from residual_lab.models import build_model

    def params(config: Config) -> float:
        with torch.device("meta"):
            return count_parameters(build_model(config))["params"]

    return params if key == "params" else flops_per_token


def _step_time(base: Config, others: Mapping[str, Config], asked: Asked) -> Callable[..., float]:
    """Of all at once, interleaved. Raises LabError where nothing may be measured."""
    if asked.only is not None:
        raise LabError(
            f"match=step_time: not solved yet, and only={asked.only} measures nothing; drop only="
        )
    deep = _with_layers(base, 2 * _depth(base))
    configs = {**others, "baseline": base, "twice as deep": deep}
    found = timing(configs, asked.out / "matched_step_times.json", max(asked.rounds, 2))
    assert found is not None
    names = {config_hash(config): name for name, config in configs.items()}
    return lambda config: found.step_time(names[config_hash(config)])


def _depth(config: Config) -> int:
    return config.model.layers


def _with_layers(config: Config, layers: int) -> Config:
    return config.model_copy(update={"model": config.model.model_copy(update={"layers": layers})})
