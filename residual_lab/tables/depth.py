"""Numbers over depth from ``inspection.json``: of each seed, by name, for pictures and tables."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from residual_lab.tables.grouping import Group
from residual_lab.tables.runs import Run

Seeds = NDArray[np.float64]  # the first dimension are seeds; NaN where there is no number

_STAGE = re.compile(r"stage (\d+) ")  # before the name of a weight of a ResNet
_GREEK = {"alpha": "α", "beta": "β", "gamma": "γ", "lambda": "λ"}
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


def scalars(group: Group) -> dict[str, Seeds]:
    """Weights of each layer, (seeds, L); of several that a layer has, each under its number."""
    found: dict[str, Seeds] = {}
    for name, values in _weights(group):
        if values.shape[1] != depth_of(group.runs[0], name):
            continue
        if values.ndim == 2:
            found[name] = values
        else:
            found |= {f"{name}_{n}": values[:, :, n] for n in range(values.shape[2])}
    return found


def triangles(group: Group) -> dict[str, Seeds]:
    """Weights of sums over depth, (seeds, L + 1, L + 1)."""
    return {
        name: values
        for name, values in _weights(group)
        if values.shape[1] == depth_of(group.runs[0], name) + 1
    }


def cosines(group: Group) -> Seeds | None:
    """Cosine similarity to the embedding of what each layer and the output read, (seeds, L + 1)."""
    found = [run.inspection.get("cosine_to_embedding") for run in group.finished]
    known = [values for values in found if values is not None]
    return np.array(known, float) if known else None


def means_and_deviations(values: Seeds) -> tuple[Seeds, Seeds]:
    """Over seeds; the deviation of one seed is 0."""
    deviation = values.std(0, ddof=1) if len(values) > 1 else np.zeros(values.shape[1:])
    return values.mean(0), deviation


def depth_of(run: Run, name: str) -> int:
    """How many layers the connection that has the weight ``name`` sees.

    L, or 2L where attention and MLP are layers; in a ResNet those of the weight's stage.
    """
    stage = _STAGE.match(name)
    if stage is not None:
        from residual_lab.config.models import ResNetConfig

        return ResNetConfig.model_validate(run.config["model"]).depths[int(stage[1]) - 1]
    branches = 2 if run.config["residual"].get("granularity") == "branch" else 1
    return int(run.config["model"]["layers"]) * branches


def title_of(name: str) -> str:
    """``alpha`` as α, ``gamma_0`` as γ₀, ``b_q_std`` as b (q, std)."""
    stage = _STAGE.match(name)
    if stage is not None:
        return f"{title_of(name[stage.end() :])}, stage {stage[1]}"
    first, *rest = name.split("_")
    title = _GREEK.get(first, first)
    if rest and rest[0].isdigit():
        title += rest.pop(0).translate(_SUBSCRIPTS)
    return title + (f" ({', '.join(rest)})" if rest else "")


def _weights(group: Group) -> Iterator[tuple[str, Seeds]]:
    """Each weight that all runs with an inspection have, stacked."""
    inspected: list[dict[str, Any]] = [
        run.inspection["weights"] for run in group.finished if run.inspection
    ]
    if not inspected:
        return
    for name in inspected[0]:
        if all(name in weights for weights in inspected):
            yield name, np.array([weights[name] for weights in inspected], float)
