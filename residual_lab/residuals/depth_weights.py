"""How weights over depth are laid out for pictures (``Connection.weights_over_depth``)."""

from collections.abc import Mapping, Sequence
from math import nan

import torch
from torch import Tensor

from residual_lab.residuals.depth_schedule import Schedule


def by_layer(depth: int, places: Sequence[int], values: Tensor) -> Tensor:
    """Return ``values`` (n, …) as (L, …), NaN for the layers that are not in ``places``."""
    found = values.new_full((depth, *values.shape[1:]), nan)
    found[list(places)] = values
    return found


def triangle(depth: int, rows: Mapping[int, Tensor]) -> Tensor:
    """Return (L + 1, L + 1): row i begins with the weights ``rows[i]``, the rest is NaN."""
    found = next(iter(rows.values())).new_full((depth + 1, depth + 1), nan)
    for row, weights in rows.items():
        found[row, : len(weights)] = weights
    return found


def triangle_of(schedule: Schedule, weights: Tensor) -> Tensor:
    """Return the ``weights`` (schedule.size,) of sums where step j appends source j."""
    depth = len(schedule.rows) - 1
    found = weights.new_full((depth + 1, depth + 1), nan)
    for step, row in enumerate(schedule.rows):
        for source in row:
            found[step, source] = weights[schedule.index(source, step)]
    return found


def unfold(read: Tensor, mix: Tensor, write: Tensor, output: Tensor) -> Tensor:
    """Return the sums over depth that layers between n streams amount to, (L + 1, L + 1).

    Args:
        read: weight of each stream in what a layer reads, (L, n).
        mix: weight of stream j in stream i after the layer, (L, n, n) by [layer, j, i].
        write: weight of the layer's increment in each stream, (L, n).
        output: weight of each stream in the output, (n,).
    """
    depth, n = read.shape
    sources = torch.zeros(depth + 1, n, dtype=read.dtype, device=read.device)
    sources[0] = 1  # the embedding starts every stream
    rows = {}
    for layer in range(depth):
        rows[layer] = sources[: layer + 1] @ read[layer]
        sources = sources @ mix[layer]
        sources[layer + 1] = write[layer]
    rows[depth] = sources @ output
    return triangle(depth, rows)
