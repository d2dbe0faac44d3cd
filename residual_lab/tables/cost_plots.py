"""Pictures of what a loss costs: against step time and peak memory, with the frontier."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from residual_lab.tables.comparison import Comparison, by_seed
from residual_lab.tables.metrics import Metric, comparable, metric_named
from residual_lab.tables.plot_style import half_interval, legend, look_of
from residual_lab.tables.statistics import spread


def cost(
    rows: Sequence[Comparison], metric: Metric, step_times: Mapping[str, float] | None = None
) -> Figure | None:
    """The metric against step time and peak memory, with the rows that no other row beats.

    ``step_times``: seconds by label, measured side by side; None: each run's own.
    """
    own_times, memory = metric_named("step_time_s"), metric_named("peak_memory_bytes")
    panels = [
        (own_times.title, _own_costs(rows, own_times)),
        (memory.title, _own_costs(rows, memory)),
    ]
    if step_times is not None:
        panels[0] = (own_times.title, {label: [seconds] for label, seconds in step_times.items()})
    measured = {row.group.label for row in rows if by_seed(row.group, metric)}
    drawn = [
        (title, costs)
        for title, costs in panels
        if title != metric.title and measured & costs.keys()
    ]
    if not drawn:
        return None
    figure = Figure(figsize=(6.5 if len(drawn) > 1 else 4.0, 2.4), layout="constrained")
    axes = figure.subplots(1, len(drawn), sharey=True, squeeze=False)[0]
    for panel, (title, costs) in zip(axes, drawn, strict=True):
        _cost_panel(panel, rows, metric, costs)
        panel.set_xlabel(title)
    axes[0].set_ylabel(f"{metric.title} (bars: 95% interval of Δ)")
    legend(figure, *axes)
    return figure


def _own_costs(rows: Sequence[Comparison], cost: Metric) -> dict[str, list[float]]:
    """Of each run, by label, in the unit of the screen; none where they cannot be compared."""
    if not comparable(cost, [run for row in rows for run in row.group.finished]):
        return {}
    found = {row.group.label: by_seed(row.group, cost).values() for row in rows}
    return {label: [v / cost.unit for v in values] for label, values in found.items() if values}


def _cost_panel(
    axes: Axes, rows: Sequence[Comparison], metric: Metric, costs: Mapping[str, Sequence[float]]
) -> None:
    axes.margins(x=0.08)
    points = []
    for row in rows:
        losses = list(by_seed(row.group, metric).values())
        if not losses or row.group.label not in costs:
            continue
        across = spread(costs[row.group.label])
        point = (across.mean, spread(losses).mean / metric.unit)
        axes.errorbar(
            *point,
            xerr=across.std or 0,
            yerr=half_interval(row, metric),
            elinewidth=0.7,
            label=row.group.label,
            **(look_of(rows, row) | {"linestyle": "none"}),
        )
        points.append(point)
    frontier = pareto_frontier(points, metric.lower_is_better)
    left, right = axes.get_xlim()
    x, y = zip(*frontier, (right, frontier[-1][1]), strict=True)
    axes.step(x, y, where="post", color="#999999", linewidth=0.8, zorder=1)
    axes.set_xlim(left, right)
    axes.locator_params(axis="x", nbins=5)


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
