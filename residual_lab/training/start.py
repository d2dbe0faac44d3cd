"""A run that starts from the weights of another (``start.run``): fine-tuning, and retrofitting.

All weights of the other run are used, matched by name and of the same shape. What this run's
connection adds to a run that has none keeps its initial values; norms that it adds for keys and
values start as that of the queries, which is the only one that the other run had.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from residual_lab.config.schema import Config
from residual_lab.errors import ConfigError, LabError
from residual_lab.run_directory import RunDirectory
from residual_lab.training.final import final_weights
from residual_lab.training.optimizer import is_connection


def start_from(model: nn.Module, config: Config, fingerprint: str) -> int:
    """Give ``model`` the weights of ``config.start.run``; return where the data go on.

    That is the place in the stream of sequences where the other run stopped, if it read the same
    data (``fingerprint``) in the same order; else 0. Raises LabError for a run that is not
    finished, and for weights that do not fit.
    """
    assert config.start.run is not None
    run = RunDirectory.open(config.start.run)
    try:
        weights = final_weights(run)
    except LabError as error:
        raise ConfigError(f"start.run={run.path}: must be a finished run: {error}") from None
    same = run.config.residual.connection == config.residual.connection
    problems = take(model, weights, connection_too=same)
    if problems:
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(
            f"start.run={run.path}: {problems[0]}{more}; start from a run of the same model and "
            "residual, or from residual=plain"
        )
    result: Mapping[str, Any] = run.result or {}
    if result.get("data_fingerprint") != fingerprint or run.config.seed != config.seed:
        return 0
    first: int = result.get("first_sequence", 0)
    return first + result["steps"] * run.config.batch_sequences


@torch.no_grad()
def take(model: nn.Module, weights: Mapping[str, Tensor], *, connection_too: bool) -> list[str]:
    """Copy ``weights`` into ``model``, or nothing where they do not fit; return what does not.

    ``connection_too``: those of a connection are for this model's.
    """
    own = model.state_dict()
    sources = {name: _source(name, weights) for name in own}
    problems = [
        f"it has no {name}, which this model needs"
        for name, source in sources.items()
        if source is None and not is_connection(name)
    ]
    used = {source for source in sources.values() if source is not None}
    for name, weight in weights.items():
        if name not in used or (is_connection(name) and not connection_too):
            problems.append(f"its {name} {tuple(weight.shape)} has no place in this model")
    for name, source in sources.items():
        if source is not None and weights[source].shape != own[name].shape:
            shapes = f"{tuple(weights[source].shape)}, not {tuple(own[name].shape)}"
            problems.append(f"its {source} is {shapes}")
    if not problems:
        for name, source in sources.items():
            if source is not None:
                own[name].copy_(weights[source])
    return problems


def _source(name: str, weights: Mapping[str, Tensor]) -> str | None:
    """The name under which ``weights`` have what ``name`` starts as."""
    queries = re.sub(r"\.norm_[kv]\.", ".norm.", name)
    return next((known for known in (name, queries) if known in weights), None)
