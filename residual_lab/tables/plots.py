"""Pictures of a comparison, as PNG and SVG: loss curves, what a loss costs, differences, depth.

Readable in print and to the colour-blind: the colours of Okabe and Ito (2008), and for each row
a marker and a line style besides. The same runs give the same files, byte for byte.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from residual_lab.measure.protocol import LOSS_UNITS, kind_of
from residual_lab.tables.comparison import Comparison, baselines_first, compare_groups
from residual_lab.tables.cost_plots import cost
from residual_lab.tables.curve_plots import axis_curve, grid_map, sensitivity
from residual_lab.tables.depth_plots import depth_figures
from residual_lab.tables.grouping import Group
from residual_lab.tables.metrics import Metric, metric_named
from residual_lab.tables.plot_style import (
    BASELINE_COLOUR,
    STYLE,
    half_interval,
    is_wide,
    legend,
    line_of_seeds,
    line_with_band,
    look_of,
    save_all,
)
from residual_lab.tables.runs import Run
from residual_lab.tables.statistics import difference


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
    step_times: Mapping[str, float] | None = None,
) -> list[Path]:
    """All pictures that the rows have data for, as PNG and SVG in ``folder``; returns their files.

    ``loss_curves``, ``cost``, ``difference``; ``axis``, the metric against that key of the
    configuration; ``grid``, its map over two keys; and of what the runs' inspections hold,
    ``learned_weights``, ``weights_ROW`` and ``cosine`` over depth. Those of them in ``folder``
    that there is nothing to draw for are removed.
    ``step_times``: seconds by label, measured side by side; None: each run's own.
    Raises LabError for a key that no row has, and for a file that cannot be written.
    """
    rows = baselines_first(rows)
    shown = [row for row in rows if row.group.finished]
    with style.context(["default", STYLE]):
        figures = {
            "loss_curves": loss_curves(shown),
            "cost": cost(shown, metric, step_times),
            "difference": differences(rows, metric),
            "axis": axis_curve(rows, metric, axis) if axis else None,
            "grid": grid_map(rows, metric, grid) if grid else None,
            **depth_figures(shown),
        }
        return save_all(figures, folder, others="weights_.+")


def draw_sensitivity(rows: Sequence[Comparison], folder: Path, metric: Metric) -> list[Path]:
    """The metric against the learning rate, ``rows`` being one for each rate of each label.

    A picture in ``folder`` is removed where there is none to draw.
    """
    with style.context(["default", STYLE]):
        return save_all({"sensitivity": sensitivity(rows, metric)}, folder)


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
    """Left: mean validation loss ± standard deviation. Right: its difference to the baseline.

    Of vectors that a linear map makes, tokens are examples and losses squared errors; of images,
    tokens are images.
    """
    curves = {row.group.label: _curves(row.group) for row in rows}
    drawn = [row for row in rows if curves[row.group.label]]
    if not drawn:
        return None
    compared = [row for row in drawn if row.baseline and not row.is_baseline]
    figure = Figure(figsize=(6.5 if compared else 4.0, 2.4), layout="constrained")
    left, *rest = figure.subplots(1, 2 if compared else 1, squeeze=False)[0]
    every = [v for row in drawn for at in curves[row.group.label].values() for v in at.values()]
    if is_wide(every):
        left.set_yscale("log")
    else:
        _leave_out_the_start(left, [curves[row.group.label] for row in drawn])
    for row in drawn:
        label = row.group.label
        points = {tokens: list(values.values()) for tokens, values in curves[label].items()}
        line_of_seeds(left, points, look_of(rows, row), label)
    for right in rest:
        _difference_curves(right, rows, compared, curves)
    loss, tokens = _units(drawn)
    left.set_ylabel(f"validation loss ({loss})")
    for axes in (left, *rest):
        axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
        axes.set(xlabel=tokens, xlim=(0, None))
    legend(figure, left)
    return figure


def _units(rows: Sequence[Comparison]) -> tuple[str, str]:
    """Of the loss, and of what a run is trained on."""
    kinds = list(dict.fromkeys(kind_of(row.group.settings.get("data.source")) for row in rows))
    losses = [LOSS_UNITS[kind] for kind in kinds]
    return " or ".join(losses), f"training {' or '.join(kinds)}"


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
    axes.set_ylabel("Δ validation loss, 95% interval")


def differences(rows: Sequence[Comparison], metric: Metric) -> Figure | None:
    """One line a row: the difference to its baseline with its 95% interval."""
    compared = [row for row in rows if row.baseline and not row.is_baseline]
    if not any(row.difference for row in compared):
        return None
    bases = list(dict.fromkeys(row.baseline.label for row in compared if row.baseline))
    named = [_other_baseline(row, bases) for row in compared]
    lengths = [*(len(row.group.label) for row in compared), *(0.7 * len(name) for name in named)]
    line = 0.31 if any(named) else 0.24
    size = (3.6 + 0.06 * max(lengths), 0.7 + line * len(compared))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    shown = [row for row in rows if row.group.finished]
    for height, row in enumerate(compared):
        _difference_line(axes, height, row, metric, shown)
    axes.axvline(0, color=BASELINE_COLOUR, linewidth=0.8, zorder=1)
    _row_labels(axes, [row.group.label for row in compared], named)
    axes.locator_params(axis="x", nbins=6)
    axes.set_ylim(len(compared) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    to = " or ".join(bases) if len(bases) <= 2 else "its baseline"
    better = "left" if metric.lower_is_better else "right"
    gap = "\n" if len(to) > 30 else " "
    axes.set_xlabel(f"Δ {metric.title} to {to},{gap}95% interval ({better} is better)")
    return figure


def _other_baseline(row: Comparison, bases: Sequence[str]) -> str:
    """What tells a row's baseline from the others; of two, only the second is named."""
    label = row.baseline.label if row.baseline else ""
    return "" if label == bases[0] and len(bases) <= 2 else f"vs {label}"


def _row_labels(axes: Axes, labels: Sequence[str], named: Sequence[str]) -> None:
    """The names of rows, and below them, small and grey, of the baselines that are named."""
    heights = [height - 0.14 * bool(name) for height, name in enumerate(named)]
    axes.set_yticks(heights, labels)
    below = {height + 0.24: name for height, name in enumerate(named) if name}
    axes.set_yticks(list(below), list(below.values()), minor=True, fontsize=6, color="#777777")
    axes.tick_params(axis="y", which="both", length=0, pad=3.5)


def _difference_line(
    axes: Axes, height: int, row: Comparison, metric: Metric, shown: Sequence[Comparison]
) -> None:
    gap = row.difference
    if gap is None:
        _remark(axes, 0, height, _why_none(row))
        return
    look = look_of(shown, row) | {"linestyle": "none"}
    mean = gap.mean / metric.unit
    if gap.test == "none":
        hollow = {"markerfacecolor": "white", "markeredgecolor": look["color"]}
        axes.plot(mean, height, **(look | hollow))
        _remark(
            axes, mean, height, "one seed: no evidence" if gap.n == 1 else "no spread: no evidence"
        )
        return
    half = half_interval(row, metric)
    axes.errorbar(mean, height, xerr=half, elinewidth=1.1, capsize=2, capthick=1.1, **look)


def _why_none(row: Comparison) -> str:
    if not row.group.finished:
        return "no run finished"
    if row.baseline is not None and not row.baseline.finished:
        return "its baseline did not finish"
    return "not measured"


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
