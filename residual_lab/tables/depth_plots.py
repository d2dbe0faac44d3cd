"""Pictures of trained models over depth: learned weights, and how long the embedding is kept."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from residual_lab.tables.comparison import Comparison
from residual_lab.tables.depth import (
    Seeds,
    cosines,
    means_and_deviations,
    scalars,
    title_of,
    triangles,
)
from residual_lab.tables.grouping import Group
from residual_lab.tables.plot_style import legend, line_with_band, look_of

_COLUMNS = 3  # panels beside each other
_LINEAR = 0.05  # weights up to here are drawn on a linear scale, larger ones on a logarithmic


def depth_figures(rows: Sequence[Comparison]) -> dict[str, Figure | None]:
    """By file name: weights of layers, maps of each row that has sums over depth, cosines."""
    figures = {"learned_weights": learned_weights(rows)}
    for row in rows:
        name = "weights_" + re.sub(r"[^\w.,+=-]+", "_", row.group.label)
        while name in figures:
            name += "_"
        figures[name] = weight_maps(row.group)
    return figures | {"cosine": cosine(rows)}


def learned_weights(rows: Sequence[Comparison]) -> Figure | None:
    """A panel for each weight that layers have, a line for each row: mean ± deviation by layer."""
    found = [(row, scalars(row.group)) for row in rows]
    names = list(dict.fromkeys(name for _, weights in found for name in weights))
    if not names:
        return None
    figure, panels = _panels(len(names), 2.2, 1.9)
    for name, axes in zip(names, panels, strict=True):
        for row, weights in found:
            if name in weights:
                _line(axes, weights[name], 1, look_of(rows, row), row.group.label)
        axes.set(title=title_of(name), xlabel="layer")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    legend(figure, *panels)
    return figure


def cosine(rows: Sequence[Comparison]) -> Figure | None:
    """Mean cosine similarity of the stream to the embedding, after so many layers."""
    found = [(row, cosines(row.group)) for row in rows]
    if all(values is None for _, values in found):
        return None
    figure = Figure(figsize=(4.0, 2.4), layout="constrained")
    axes = figure.subplots()
    for row, values in found:
        if values is not None:
            _line(axes, values, 0, look_of(rows, row), row.group.label)
    axes.set(xlabel="after so many layers", ylabel="cosine to the embedding")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    legend(figure, axes)
    return figure


def weight_maps(group: Group) -> Figure | None:
    """The weights of sums over depth, mean over seeds: a map for each, on one scale of colours.

    Symmetric and logarithmic, as DenseFormer's figure 5; negative weights have a minus in them.
    Sums that are much like plain's, whose weights are 1, are drawn as their difference to it.
    """
    means = {name: means_and_deviations(values)[0] for name, values in triangles(group).items()}
    if not means:
        return None
    maps = _to_plain({title_of(name): values for name, values in means.items()})
    largest = max(1.0, *(float(np.nanmax(np.abs(values))) for values in maps.values()))
    norm = SymLogNorm(_LINEAR, vmin=-largest, vmax=largest, base=10)
    side = _side(max(map(len, maps.values())))
    figure, panels = _panels(len(maps), side + 0.5, side + 0.7)
    for (title, weights), axes in zip(maps.items(), panels, strict=True):
        image = _map(axes, weights, norm)
        axes.set_title(title)
    for axes in panels[-_COLUMNS:]:
        axes.set_xlabel("source (0: embedding)")
    for axes in panels[::_COLUMNS]:
        axes.set_ylabel("read after so many layers")
    ticks = [-1, -0.1, 0, 0.1, 1]
    bar = figure.colorbar(image, ax=list(panels), aspect=30, pad=0.02, ticks=ticks)
    bar.set_ticks([], minor=True)
    bar.set_ticklabels([f"{tick:g}".replace("-", "−") for tick in ticks])
    figure.suptitle(_seeds(group), fontsize=8, x=0.01, ha="left")
    return figure


def _to_plain(maps: dict[str, Seeds]) -> dict[str, Seeds]:
    """By title; weights minus 1 where most of them are nearer to 1 than to 0."""
    weights = {title: values for title, values in maps.items() if not title.endswith("std)")}
    middle = np.nanmedian(np.concatenate([values.ravel() for values in weights.values()]))
    if middle <= 0.5:
        return maps
    return {
        f"{title} − 1" if title in weights else title: values - (title in weights)
        for title, values in maps.items()
    }


def _seeds(group: Group) -> str:
    count = sum(bool(run.inspection) for run in group.finished)
    return group.label + (f", mean of {count} seeds" if count > 1 else "")


def _line(axes: Axes, values: Seeds, first: int, look: dict[str, Any], label: str) -> None:
    """Points where there is a weight, joined over the layers that have none."""
    middle, around = means_and_deviations(values)
    there = ~np.isnan(middle)
    x = np.arange(first, first + len(middle))[there]
    middle, around = middle[there], around[there]
    line_with_band(axes, x, middle, middle - around, middle + around, look, label)


def _map(axes: Axes, weights: Seeds, norm: SymLogNorm) -> PolyCollection:
    size = len(weights)
    read, source = np.nonzero(~np.isnan(weights))
    values = weights[read, source]
    corners = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)])
    cells = PolyCollection(
        np.stack([source, read], 1)[:, None] + corners,
        array=values,
        norm=norm,
        cmap="RdBu_r",
        edgecolors="#bbbbbb" if size <= 32 else "face",
        linewidths=0.3 if size <= 32 else 0.1,
    )
    axes.add_collection(cells)
    dark = np.abs(norm(values) - 0.5) > 0.3
    for chosen, colour in ((dark, "white"), (~dark, "black")):
        negative = chosen & (values <= -_LINEAR)
        side = 72 * _side(size) / size / 2  # half a cell, in points
        axes.scatter(
            source[negative],
            read[negative],
            marker="_",
            s=side**2,
            color=colour,
            linewidth=min(0.8, side / 4),
        )
    axes.patch.set(hatch="/////", edgecolor="#e2e2e2", linewidth=0)  # where there is no weight
    axes.set(aspect="equal", xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5))
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    return cells


def _side(size: int) -> float:
    """The width of a map in inches."""
    return min(4.0, max(1.7, 0.07 * size))


def _panels(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels of that size in inches, row by row."""
    columns = min(count, _COLUMNS)
    lines = -(-count // columns)
    size = (max(3.2, width * columns + 0.4), height * lines + 0.2)
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.06)  # type: ignore[union-attr, call-arg]
    grid = figure.subplots(lines, columns, squeeze=False).flatten()
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, list(grid[:count])
