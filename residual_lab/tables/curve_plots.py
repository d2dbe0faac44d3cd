"""Pictures of a metric against keys of the configuration: curves over one, maps over two."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from itertools import count, pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from residual_lab.tables.comparison import (
    Comparison,
    baselines_first,
    best_validated,
    by_seed,
)
from residual_lab.tables.grouping import Settings, check_keys, labels
from residual_lab.tables.metrics import Metric
from residual_lab.tables.numbers import fixed
from residual_lab.tables.plot_style import (
    BASELINE_COLOUR,
    deviation_band,
    is_wide,
    legend,
    line_of_seeds,
    series_look,
)
from residual_lab.tables.statistics import Spread, spread

Point = tuple[float, ...]  # a value of each key
Series = dict[Point, Comparison]
Line = dict[float, Comparison]  # by the value of one key

_GREY = "#555555"


def axis_curve(rows: Sequence[Comparison], metric: Metric, key: str) -> Figure | None:
    """The metric against ``key``, mean ± standard deviation over seeds: a line for each connection.

    Rows that differ in more than the key, at one and the same value of it, are further lines.
    Rows without a number there, such as the baseline of a curve over ``residual.rank``, are level.
    Raises LabError for a key that no row has.
    """
    check_keys((row.group.settings for row in rows), (key,))
    ended = [row for row in rows if by_seed(row.group, metric) or _has_diverged(row)]
    series, others = _series(ended, (key,))
    lines = {
        label: {x: row for (x,), row in sorted(points.items())} for label, points in series.items()
    }
    level = [row for row in others if by_seed(row.group, metric)]
    drawn = _curves(lines, metric, key, level)
    if drawn is None:
        return None
    legend(*drawn)
    return drawn[0]


def sensitivity(rows: Sequence[Comparison], metric: Metric) -> Figure | None:
    """The metric against the learning rate: a line for each label, its best rate in a ring.

    The best is that of the validation loss, as in the table.
    """
    lines: dict[str, Line] = defaultdict(dict)
    for row in baselines_first(rows):
        lines[row.group.label][float(str(row.group.settings["optim.lr"]))] = row
    measured = {
        label: any(by_seed(r.group, metric) for r in lines[label].values()) for label in lines
    }
    ordered = {
        label: lines[label] for label in sorted(lines, key=lambda label: not measured[label])
    }
    drawn = _curves(ordered, metric, "optim.lr")
    if drawn is None:
        return None
    figure, axes = drawn
    ring: Any = {"marker": "o", "markersize": 10, "linestyle": "none", "markerfacecolor": "none"}
    for line in ordered.values():
        best = best_validated([row.group for row in line.values()])
        for x, row in line.items():
            if row.group is best and by_seed(best, metric):
                axes.plot(x, _spread(row, metric).mean, **ring, markeredgecolor=_GREY, mew=1)
    axes.plot([], [], label="best validation loss", **ring, markeredgecolor=_GREY, mew=1)
    legend(figure, axes)
    return figure


def _curves(
    lines: Mapping[str, Line], metric: Metric, key: str, level: Sequence[Comparison] = ()
) -> tuple[Figure, Axes] | None:
    """Lines over the values of ``key``, and rows that are ``level``; None if none is measured."""
    measured = [row for line in lines.values() for row in line.values() if _values(row, metric)]
    if not measured:
        return None
    figure = Figure(figsize=(4.0, 2.5), layout="constrained")
    axes = figure.subplots()
    if is_wide([value for row in (*measured, *level) for value in _values(row, metric)]):
        axes.set_yscale("log")
    looks = _looks(lines)
    for label, line in lines.items():
        found = {x: _values(row, metric) for x, row in sorted(line.items())}
        points = {x: values for x, values in found.items() if values}
        line_of_seeds(axes, points, looks[label], label)
    for number, row in enumerate(level):
        _level(axes, row, metric, number)
    _scale(axes, key, sorted({x for line in lines.values() for x in line}))
    _diverged(axes, lines, looks)
    axes.set(xlabel=key, ylabel=metric.title)
    return figure, axes


def _looks(lines: Mapping[str, Line]) -> dict[str, dict[str, Any]]:
    """A line that a baseline is on has the look of one."""
    numbers = {True: count(), False: count()}
    base = {label: any(row.is_baseline for row in line.values()) for label, line in lines.items()}
    return {label: series_look(next(numbers[base[label]]), base[label]) for label in lines}


def _diverged(
    axes: Axes, lines: Mapping[str, Line], looks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Above the panel a marker on a cross for each point where a seed diverged."""
    cross: Any = {"marker": "x", "color": _GREY, "mew": 1, "linestyle": "none", "markersize": 9}
    heights: Counter[float] = Counter()
    for label, line in lines.items():
        for x, row in line.items():
            if not _has_diverged(row):
                continue
            place: Any = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            y = 1.05 + 0.09 * heights[x]
            heights[x] += 1
            axes.plot(x, y, **place, **cross)
            axes.plot(x, y, **place, **{**looks[label], "linestyle": "none"})
    if heights:
        axes.plot([], [], label="a seed diverged", **cross)


def _has_diverged(row: Comparison) -> bool:
    return any(run.status == "diverged" for run in row.group.runs)


def grid_map(rows: Sequence[Comparison], metric: Metric, keys: tuple[str, str]) -> Figure | None:
    """The metric over two keys, the first to the right: a map for each connection.

    Mean ± standard deviation over seeds; rows without both keys are named below with theirs.
    Raises LabError for a key that no row has.
    """
    check_keys((row.group.settings for row in rows), keys)
    series, others = _series([row for row in rows if by_seed(row.group, metric)], keys)
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
    middle, low, high = deviation_band(axes, _values(row, metric))
    colour = BASELINE_COLOUR if row.is_baseline else "#777777"
    line = ("--", ":", "-.")[number % 3]
    axes.axhline(middle, color=colour, linestyle=line, linewidth=1, label=row.group.label)
    if high > low:
        axes.axhspan(low, high, color=colour, alpha=0.08, linewidth=0)


def _scale(axes: Axes, key: str, values: Sequence[float]) -> None:
    """Logarithmic where values are, and for rates; few of them are ticks themselves."""
    wide = len(values) > 2 and values[0] > 0 and values[-1] / values[0] >= 4
    rates = key == "optim.lr" and len(values) > 1 and values[0] > 0
    apart = True
    if wide or rates:
        axes.set_xscale("log")
        axes.minorticks_off()
        nearest = min(b / a for a, b in pairwise(values))
        apart = math.log(nearest) > 0.12 * math.log(values[-1] / values[0])
    if len(values) <= 8 and apart:
        axes.set_xticks(values, [f"{x:g}" for x in values])
    elif wide or rates:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")


def _values(row: Comparison, metric: Metric) -> list[float]:
    """Of the finished runs, in the unit of the screen."""
    return [value / metric.unit for value in by_seed(row.group, metric).values()]


def _spread(row: Comparison, metric: Metric) -> Spread:
    return spread(_values(row, metric))


def _series(
    rows: Sequence[Comparison], keys: Sequence[str]
) -> tuple[dict[str, Series], list[Comparison]]:
    """Rows with numbers under all ``keys``, by line and point, and the rows without them."""
    points: dict[Point, list[Comparison]] = defaultdict(list)
    others = []
    for row in rows:
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
