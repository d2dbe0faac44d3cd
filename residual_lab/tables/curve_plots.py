"""Pictures of a metric against keys of the configuration: curves over one, maps over two."""

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from residual_lab.errors import LabError, suggestion
from residual_lab.tables.comparison import Comparison, by_seed
from residual_lab.tables.grouping import Settings, labels
from residual_lab.tables.metrics import Metric
from residual_lab.tables.numbers import fixed
from residual_lab.tables.plot_style import BASELINE_COLOUR, legend, line_with_band, series_look
from residual_lab.tables.statistics import Spread, spread

Point = tuple[float, ...]  # a value of each key
Series = dict[Point, Comparison]


def axis_curve(rows: Sequence[Comparison], metric: Metric, key: str) -> Figure | None:
    """The metric against ``key``, mean ± standard deviation over seeds: a line for each connection.

    Rows that differ in more than the key, at one and the same value of it, are further lines.
    Rows without a number there, such as the baseline of a curve over ``residual.rank``, are level.
    Raises LabError for a key that no row has.
    """
    series, others = _series(rows, metric, (key,))
    if not series:
        return None
    figure = Figure(figsize=(4.0, 2.5), layout="constrained")
    axes = figure.subplots()
    order = [any(row.is_baseline for row in points.values()) for points in series.values()]
    for number, (label, points) in enumerate(series.items()):
        found = [_spread(points[place], metric) for place in sorted(points)]
        middle = [s.mean for s in found]
        low = [s.mean - (s.std or 0) for s in found]
        high = [s.mean + (s.std or 0) for s in found]
        look = series_look(None if order[number] else number - sum(order[:number]))
        line_with_band(axes, [x for (x,) in sorted(points)], middle, low, high, look, label)
    for number, row in enumerate(others):
        _level(axes, row, metric, number)
    _scale(axes, sorted({x for points in series.values() for (x,) in points}))
    axes.set(xlabel=key, ylabel=metric.title)
    legend(figure, axes)
    return figure


def grid_map(rows: Sequence[Comparison], metric: Metric, keys: tuple[str, str]) -> Figure | None:
    """The metric over two keys, the first to the right: a map for each connection.

    Mean ± standard deviation over seeds; rows without both keys are named below with theirs.
    Raises LabError for a key that no row has.
    """
    series, others = _series(rows, metric, keys)
    if not series:
        return None
    places = [place for points in series.values() for place in points]
    right, up = (sorted({place[n] for place in places}) for n in (0, 1))
    width, height = max(2.6, 0.62 * len(right) + 0.9), 0.42 * len(up) + 1.0
    figure = Figure(figsize=(width * len(series) + 0.5, height), layout="constrained")
    panels = figure.subplots(1, len(series), squeeze=False)[0]
    spreads = {
        label: {place: _spread(row, metric) for place, row in points.items()}
        for label, points in series.items()
    }
    means = [s.mean for found in spreads.values() for s in found.values()]
    limits = (min(means), max(means) if max(means) > min(means) else min(means) + 1)
    for axes, (label, found) in zip(panels, spreads.items(), strict=True):
        image = _cells(axes, found, right, up, limits)
        axes.set(title=label, xlabel=keys[0], ylabel=keys[1])
    figure.colorbar(image, ax=list(panels), label=metric.title, aspect=15, pad=0.02)
    if others:
        known = [(row.group.label, _spread(row, metric)) for row in others]
        text = ", ".join(f"{label} {_digits(s.mean, limits)}" for label, s in known)
        figure.supxlabel(text, fontsize=7, color="#555555", x=0.01, ha="left")
    return figure


def _cells(
    axes: Axes,
    found: Mapping[Point, Spread],
    right: Sequence[float],
    up: Sequence[float],
    limits: tuple[float, float],
) -> Any:
    values = np.full((len(up), len(right)), np.nan)
    for (x, y), s in found.items():
        values[up.index(y), right.index(x)] = s.mean
    image = axes.pcolormesh(
        np.ma.masked_invalid(values), cmap="cividis", vmin=limits[0], vmax=limits[1]
    )
    for (x, y), s in found.items():
        text = _digits(s.mean, limits)
        if s.std is not None:
            text += f"\n±{_digits(s.std, limits)}"
        dark = s.mean < sum(limits) / 2
        place = (right.index(x) + 0.5, up.index(y) + 0.5)
        colour = "white" if dark else "black"
        axes.annotate(text, place, ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xticks(np.arange(len(right)) + 0.5, [f"{x:g}" for x in right])
    axes.set_yticks(np.arange(len(up)) + 0.5, [f"{y:g}" for y in up])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    return image


def _digits(value: float, limits: tuple[float, float]) -> str:
    """With a step of about a thirtieth of what the cells span."""
    return fixed(value, max(0, math.ceil(math.log10(30 / (limits[1] - limits[0])))))


def _level(axes: Axes, row: Comparison, metric: Metric, number: int) -> None:
    """A row that the key says nothing of."""
    found = _spread(row, metric)
    colour = BASELINE_COLOUR if row.is_baseline else "#777777"
    line = ("--", ":", "-.")[number % 3]
    axes.axhline(found.mean, color=colour, linestyle=line, linewidth=1, label=row.group.label)
    if found.std:
        low, high = found.mean - found.std, found.mean + found.std
        axes.axhspan(low, high, color=colour, alpha=0.08, linewidth=0)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    """Logarithmic where values are; few of them are ticks themselves."""
    if len(values) > 2 and values[0] > 0 and values[-1] / values[0] >= 4:
        axes.set_xscale("log")
        axes.minorticks_off()
    if len(values) <= 8:
        axes.set_xticks(values, [f"{x:g}" for x in values])


def _spread(row: Comparison, metric: Metric) -> Spread:
    """Of the finished runs, in the unit of the screen."""
    return spread([value / metric.unit for value in by_seed(row.group, metric).values()])


def _series(
    rows: Sequence[Comparison], metric: Metric, keys: Sequence[str]
) -> tuple[dict[str, Series], list[Comparison]]:
    """Rows with numbers under all ``keys``, by line and point, and the rows without them."""
    _check(rows, keys)
    measured = [row for row in rows if by_seed(row.group, metric)]
    points: dict[Point, list[Comparison]] = defaultdict(list)
    others = []
    for row in measured:
        values = [row.group.settings.get(key) for key in keys]
        numbers = [
            float(v) for v in values if isinstance(v, int | float) and not isinstance(v, bool)
        ]
        if len(numbers) == len(keys):
            points[tuple(numbers)].append(row)
        else:
            others.append(row)
    apart = _keys_apart(points)
    lines: dict[frozenset[tuple[str, Hashable]], Series] = defaultdict(dict)
    for point, found in points.items():
        for row in found:
            own = {key: row.group.settings[key] for key in apart if key in row.group.settings}
            lines[frozenset(own.items())][point] = row
    names = labels([_named(dict(own)) for own in lines])
    return dict(sorted(zip(names, lines.values(), strict=True))), others


def _keys_apart(points: Mapping[Point, Sequence[Comparison]]) -> list[str]:
    """The connection's name, and the keys in which rows of one connection differ at one point."""
    apart = {"residual.name": None}
    for found in points.values():
        by_name: dict[Hashable, list[Settings]] = defaultdict(list)
        for row in found:
            by_name[row.group.settings["residual.name"]].append(row.group.settings)
        for settings in by_name.values():
            keys = dict.fromkeys(key for own in settings for key in own)
            apart |= {k: None for k in keys if len({own.get(k, k) for own in settings}) > 1}
    return list(apart)


def _named(own: Settings) -> Settings:
    return {"residual.name": own["residual.name"]} | own


def _check(rows: Sequence[Comparison], keys: Sequence[str]) -> None:
    known = dict.fromkeys(key for row in rows for key in row.group.settings)
    for key in keys:
        if known and key not in known:
            raise LabError(f"{key}: no row has such a key{suggestion(key, known)}")
