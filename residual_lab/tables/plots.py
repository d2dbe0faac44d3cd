"""Pictures of a comparison, as PNG and SVG: loss curves, what a loss costs, differences, depth.

Readable in print and to the colour-blind: the colours of Okabe and Ito (2008), and for each row
a marker and a line style besides. The same runs give the same files, byte for byte.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from residual_lab.tables.comparison import Comparison, baselines_first, by_seed, compare_groups
from residual_lab.tables.curve_plots import axis_curve, grid_map
from residual_lab.tables.depth_plots import depth_figures
from residual_lab.tables.grouping import Group
from residual_lab.tables.metrics import Metric, comparable, metric_named
from residual_lab.tables.plot_style import (
    BASELINE_COLOUR,
    STYLE,
    legend,
    line_with_band,
    look_of,
    save_all,
)
from residual_lab.tables.runs import Run
from residual_lab.tables.statistics import difference, spread


def draw(
    runs: Sequence[Run],
    folder: Path,
    baseline: str = "plain",
    metric: str = "val_loss",
    axis: str | None = None,
    grid: tuple[str, str] | None = None,
) -> list[Path]:
    """The pictures of :func:`residual_lab.tables.compare`'s table; returns their files.

    Raises LabError as ``compare`` and :func:`draw_rows` do.
    """
    chosen = metric_named(metric)
    return draw_rows(compare_groups(runs, baseline, chosen), folder, chosen, axis, grid)


def draw_rows(
    rows: Sequence[Comparison],
    folder: Path,
    metric: Metric,
    axis: str | None = None,
    grid: tuple[str, str] | None = None,
) -> list[Path]:
    """All pictures that the rows have data for, as PNG and SVG in ``folder``; returns their files.

    ``loss_curves``, ``cost``, ``difference``; ``axis``, the metric against that key of the
    configuration; ``grid``, its map over two keys; and of what the runs' inspections hold,
    ``learned_weights``, ``weights_ROW`` and ``cosine`` over depth.
    Raises LabError for a key that no row has, and for a file that cannot be written.
    """
    rows = baselines_first(rows)
    shown = [row for row in rows if row.group.finished]
    with style.context(["default", STYLE]):
        figures = {
            "loss_curves": loss_curves(shown),
            "cost": cost(shown, metric),
            "difference": differences(rows, metric),
            "axis": axis_curve(rows, metric, axis) if axis else None,
            "grid": grid_map(rows, metric, grid) if grid else None,
            **depth_figures(shown),
        }
        return save_all(figures, folder)


def draw_sensitivity(rows: Sequence[Comparison], folder: Path, metric: Metric) -> list[Path]:
    """The metric against the learning rate, ``rows`` being one for each rate of each line."""
    with style.context(["default", STYLE]):
        return save_all({"sensitivity": axis_curve(rows, metric, "optim.lr")}, folder)


def draw_depth(groups: Sequence[Group], folder: Path) -> list[Path]:
    """The pictures over depth alone, of groups that are compared with nothing; plain is black."""
    plain = [group if group.settings["residual.name"] == "plain" else None for group in groups]
    pairs = zip(groups, plain, strict=True)
    rows = baselines_first([Comparison(group, base, None, None) for group, base in pairs])
    with style.context(["default", STYLE]):
        return save_all(depth_figures(rows), folder)


def _curves(group: Group) -> dict[int, dict[int, float]]:
    """Validation loss by tokens, then by seed."""
    curves: dict[int, dict[int, float]] = {}
    for run in group.finished:
        for row in run.metrics:
            if "val_loss" in row:
                curves.setdefault(row["tokens"], {})[run.seed] = row["val_loss"]
    return dict(sorted(curves.items()))


def loss_curves(rows: Sequence[Comparison]) -> Figure | None:
    """Left: mean validation loss ± standard deviation. Right: its difference to the baseline."""
    curves = {row.group.label: _curves(row.group) for row in rows}
    drawn = [row for row in rows if curves[row.group.label]]
    if not drawn:
        return None
    compared = [row for row in drawn if row.baseline and not row.is_baseline]
    figure = Figure(figsize=(6.5 if compared else 4.0, 2.4), layout="constrained")
    left, *rest = figure.subplots(1, 2 if compared else 1, squeeze=False)[0]
    for row in drawn:
        own = curves[row.group.label]
        spreads = [spread(list(values.values())) for values in own.values()]
        middle = [s.mean for s in spreads]
        around = [s.std or 0.0 for s in spreads]
        low = [m - a for m, a in zip(middle, around, strict=True)]
        high = [m + a for m, a in zip(middle, around, strict=True)]
        look = look_of(rows, row)
        line_with_band(left, list(own), middle, low, high, look, row.group.label)
    _leave_out_the_start(left, [curves[row.group.label] for row in drawn])
    _over_tokens(left)
    left.set_ylabel("validation loss (nats/token)")
    for right in rest:
        _difference_curves(right, rows, compared, curves)
    legend(figure, left)
    return figure


def _over_tokens(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
    axes.set(xlabel="training tokens", xlim=(0, None))


def _leave_out_the_start(axes: Axes, curves: Sequence[dict[int, dict[int, float]]]) -> None:
    """Cut the steep first fifth off the top: the differences are small and late."""
    end = max(max(curve) for curve in curves)
    late = [v for c in curves for t, values in c.items() if t >= end / 5 for v in values.values()]
    margin = 0.05 * (max(late) - min(late)) or 0.1
    axes.set_ylim(min(late) - margin, max(late) + margin)


def _difference_curves(
    axes: Axes,
    rows: Sequence[Comparison],
    compared: Sequence[Comparison],
    curves: dict[str, dict[int, dict[int, float]]],
) -> None:
    """Mean difference with its 95% interval, at each validation that both have."""
    for row in compared:
        assert row.baseline is not None
        base = curves.get(row.baseline.label, {})
        found = {
            tokens: gap
            for tokens, values in curves[row.group.label].items()
            if (gap := difference(values, base.get(tokens, {}))) is not None
        }
        gaps = list(found.values())
        middle = [gap.mean for gap in gaps]
        low = [gap.mean if gap.low is None else gap.low for gap in gaps]
        high = [gap.mean if gap.high is None else gap.high for gap in gaps]
        look = look_of(rows, row)
        line_with_band(axes, list(found), middle, low, high, look, row.group.label)
    axes.axhline(0, color=BASELINE_COLOUR, linewidth=0.8, zorder=1)
    _over_tokens(axes)
    axes.set_ylabel("Δ validation loss, 95% interval")


def cost(rows: Sequence[Comparison], metric: Metric) -> Figure | None:
    """The metric against step time and peak memory, with the rows that no other row beats."""
    runs = [run for row in rows for run in row.group.finished]
    costs = [
        cost
        for cost in (metric_named("step_time_s"), metric_named("peak_memory_bytes"))
        if cost is not metric
        and comparable(cost, runs)
        and any(by_seed(row.group, cost) and by_seed(row.group, metric) for row in rows)
    ]
    if not costs:
        return None
    figure = Figure(figsize=(6.5 if len(costs) > 1 else 4.0, 2.4), layout="constrained")
    panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for axes, cost in zip(panels, costs, strict=True):
        _cost_panel(axes, rows, metric, cost)
    panels[0].set_ylabel(f"{metric.title} (bars: 95% interval of Δ)")
    legend(figure, panels[0])
    return figure


def _cost_panel(axes: Axes, rows: Sequence[Comparison], metric: Metric, cost: Metric) -> None:
    axes.margins(x=0.08)
    points = []
    for row in rows:
        found = [list(by_seed(row.group, quantity).values()) for quantity in (cost, metric)]
        if not all(found):
            continue
        across, up = map(spread, found)
        point = (across.mean / cost.unit, up.mean / metric.unit)
        axes.errorbar(
            point[0],
            point[1],
            xerr=(across.std or 0) / cost.unit,
            yerr=_half_interval(row, metric),
            elinewidth=0.7,
            label=row.group.label,
            **(look_of(rows, row) | {"linestyle": "none"}),
        )
        points.append(point)
    frontier = pareto_frontier(points, metric.lower_is_better)
    right = axes.get_xlim()[1]
    x, y = zip(*frontier, (right, frontier[-1][1]), strict=True)
    axes.step(x, y, where="post", color="#999999", linewidth=0.8, zorder=1)
    axes.set_xlim(right=right)
    axes.set_xlabel(cost.title)
    axes.locator_params(axis="x", nbins=5)


def _half_interval(row: Comparison, metric: Metric) -> float:
    """Half the 95% interval of the difference, in the unit of the screen; 0 where there is none."""
    gap = row.difference
    if gap is None or gap.low is None or gap.high is None:
        return 0.0
    return (gap.high - gap.low) / 2 / metric.unit


def pareto_frontier(
    points: Sequence[tuple[float, float]], lower_is_better: bool = True
) -> list[tuple[float, float]]:
    """The points (cost, metric) that no point beats in one without losing in the other."""
    sign = 1 if lower_is_better else -1
    frontier: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda point: (point[0], sign * point[1])):
        if not frontier or sign * point[1] < sign * frontier[-1][1]:
            frontier.append(point)
    return frontier


def differences(rows: Sequence[Comparison], metric: Metric) -> Figure | None:
    """One line a row: the difference to the baseline with its 95% interval."""
    compared = [row for row in rows if row.baseline and not row.is_baseline]
    if not any(row.difference for row in compared):
        return None
    labels = [row.group.label for row in compared]
    size = (3.6 + 0.06 * max(map(len, labels)), 0.7 + 0.24 * len(compared))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if row.group.finished]
    for height, row in enumerate(compared):
        _difference_line(axes, height, row, metric, shown)
    axes.axvline(0, color=BASELINE_COLOUR, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(compared)), labels)
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(len(compared) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    names = " or ".join(dict.fromkeys(row.baseline.label for row in compared if row.baseline))
    better = "left" if metric.lower_is_better else "right"
    axes.set_xlabel(f"Δ {metric.title} to {names}, 95% interval ({better} is better)")
    return figure


def _difference_line(
    axes: Axes, height: int, row: Comparison, metric: Metric, shown: Sequence[Comparison]
) -> None:
    gap = row.difference
    if gap is None:
        _remark(axes, 0, height, "no run finished")
        return
    look = look_of(shown, row) | {"linestyle": "none"}
    mean = gap.mean / metric.unit
    if gap.test == "none":
        hollow = {"markerfacecolor": "white", "markeredgecolor": look["color"]}
        axes.plot(mean, height, **(look | hollow))
        _remark(axes, mean, height, "one seed: no evidence")
        return
    half = _half_interval(row, metric)
    axes.errorbar(mean, height, xerr=half, elinewidth=1.1, capsize=2, capthick=1.1, **look)


def _remark(axes: Axes, x: float, height: int, text: str) -> None:
    axes.annotate(
        text,
        (x, height),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        color="#555555",
    )
