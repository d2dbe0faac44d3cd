"""The small table of ``residual-lab inspect``: what was learned, by layer."""

from collections.abc import Iterator, Sequence

import numpy as np

from residual_lab.tables.depth import Seeds, cosines, scalars, title_of, triangles
from residual_lab.tables.grouping import Group
from residual_lab.tables.numbers import DASH, decimals, fixed
from residual_lab.tables.statistics import Spread, spread
from residual_lab.tables.table import Cell, Column, Table

_LAYER = (
    "Line i: weights of layer i, and what is read after it, by layer i + 1 or as the output; "
    "line 0 is read by layer 1."
)
_SUMS = "Of a sum over depth: its weights of the embedding and the newest source, and all others'."
_COSINES = "Cosine similarity to the token's embedding: mean over validation tokens."


def depth_table(groups: Sequence[Group]) -> Table:
    """A line for each layer of each group: means ± standard deviations over seeds."""
    found = [list(_quantities(group)) for group in groups]
    titles = {name: title for quantities in found for name, title, _ in quantities}
    columns = [Column("row", "residual"), Column("layer", "layer", "right")]
    columns += [Column(name, title, "right") for name, title in titles.items()]
    rows = []
    for group, quantities in zip(groups, found, strict=True):
        by_name = {name: values for name, _, values in quantities}
        for layer in range(max((values.shape[1] for values in by_name.values()), default=0)):
            cells = [_cell(by_name.get(name), layer) for name in titles]
            rows.append((Cell(group.label, group.label), Cell(str(layer), layer), *cells))
    notes = [_LAYER] if rows else ["No weights over depth, and no cosines."]
    notes += [_SUMS] if any(triangles(group) for group in groups) else []
    notes += [_COSINES] if "cosine_to_embedding" in titles else []
    table = Table(_title(groups), tuple(columns), tuple(rows), tuple(notes))
    return table if len(groups) > 1 else table.select("layer", *titles)


def _title(groups: Sequence[Group]) -> str:
    runs = sum(len(group.finished) for group in groups)
    names = ", ".join(group.label for group in groups)
    return f"{names}: {runs} run{'s' * (runs != 1)}"


def _quantities(group: Group) -> Iterator[tuple[str, str, Seeds]]:
    """Name, title, and values (seeds, L + 1) of each column."""
    for name, values in scalars(group).items():
        yield name, title_of(name), np.pad(values, ((0, 0), (1, 0)), constant_values=np.nan)
    for name, weights in triangles(group).items():
        if name.endswith("_std"):
            continue
        newest = np.diagonal(weights, axis1=1, axis2=2)
        embedding = weights[:, :, 0].copy()
        embedding[:, 0] = np.nan  # there it is the newest
        none = np.isnan(weights).all(2)
        others = np.nansum(weights, 2) - np.nan_to_num(newest) - np.nan_to_num(embedding)
        others[none] = np.nan
        others[:, :2] = np.nan  # there are no more than two sources
        title = title_of(name)
        yield f"{name}_embedding", f"{title} of embedding", embedding
        yield f"{name}_others", f"{title} of others", others
        yield f"{name}_newest", f"{title} of newest", newest
    similarity = cosines(group)
    if similarity is not None:
        yield "cosine_to_embedding", "cosine", similarity


def _cell(values: Seeds | None, layer: int) -> Cell:
    if values is None or layer >= values.shape[1] or np.isnan(values[:, layer]).any():
        return Cell(DASH)
    found = spread(values[:, layer].tolist())
    if found.std is None:
        return Cell(fixed(found.mean, 3), found.mean)
    return Cell(_text(found), found.mean, {"std": found.std, "n": found.n})


def _text(found: Spread) -> str:
    places = min(3, decimals(found.std or 0))
    return f"{fixed(found.mean, places)} ± {fixed(found.std or 0, places)}"
