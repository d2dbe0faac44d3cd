"""The look of every picture: print-ready, told apart without colour, the same bytes each time."""

import io
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from residual_lab.files import write_output
from residual_lab.tables.comparison import Comparison
from residual_lab.tables.metrics import Metric
from residual_lab.tables.statistics import spread

BASELINE_COLOUR = "#000000"
_BASELINE_MARKERS = "o*dph"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = "s^DvPX<>"
_LINES = ("-", "--", "-.", ":")
STYLE: Any = {
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markeredgewidth": 0.4,
    "figure.dpi": 200,
    "savefig.dpi": "figure",
    "svg.hashsalt": "residual-lab",  # otherwise the names inside an SVG are drawn at random
}


def look_of(rows: Sequence[Comparison], row: Comparison) -> dict[str, Any]:
    """Colour, marker and line of a row, the same in every picture; baselines are black."""
    kin = [other for other in rows if other.is_baseline == row.is_baseline]
    return series_look(kin.index(row), row.is_baseline)


def series_look(index: int, baseline: bool = False) -> dict[str, Any]:
    """Colour, marker and line of one of several lines, or of one of several baselines."""
    colours, markers = ((BASELINE_COLOUR,), _BASELINE_MARKERS) if baseline else (_COLOURS, _MARKERS)
    marker = markers[index % len(markers)]
    look: dict[str, Any] = {
        "color": colours[index % len(colours)],
        "marker": marker,
        "markersize": 8.5 if marker == "*" else 5.5,  # a star has little within its points
        "linestyle": _LINES[(index + (not baseline)) % len(_LINES)],
        "markeredgecolor": "white",
    }
    if baseline and index >= len(markers):  # where there are no lines, markers alone tell
        look |= {"markerfacecolor": "white", "markeredgecolor": BASELINE_COLOUR, "mew": 1}
    return look


def is_wide(values: Collection[float]) -> bool:
    """Whether a logarithmic scale shows them better: all positive, over a factor of 100."""
    return bool(values) and min(values) > 0 and max(values) > 100 * min(values)


def deviation_band(axes: Axes, values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over seeds, and one standard deviation to both sides.

    On a logarithmic scale no lower than the lowest seed: the mean less the deviation may be
    next to nothing, or negative.
    """
    found = spread(values)
    around = found.std or 0.0
    low = found.mean - around
    if axes.get_yscale() == "log":
        low = max(low, min(values))
    return found.mean, low, found.mean + around


def half_interval(row: Comparison, metric: Metric) -> float:
    """Half the 95% interval of the difference, in the unit of the screen; 0 where there is none."""
    gap = row.difference
    if gap is None or gap.low is None or gap.high is None:
        return 0.0
    return (gap.high - gap.low) / 2 / metric.unit


def line_of_seeds(
    axes: Axes, points: Mapping[Any, Sequence[float]], look: dict[str, Any], label: str
) -> None:
    """The values of all seeds at each x: a line of means, with :func:`deviation_band` around."""
    bands = [deviation_band(axes, values) for values in points.values()]
    middle, low, high = ([band[n] for band in bands] for n in range(3))
    line_with_band(axes, list(points), middle, low, high, look, label)


def line_with_band(
    axes: Axes, x: Any, middle: Any, low: Any, high: Any, look: dict[str, Any], label: str
) -> None:
    """A line with its markers; in its colour, paler, what is between ``low`` and ``high``."""
    every = max(1, len(middle) // 6)
    place = (_BASELINE_MARKERS[::-1] + _MARKERS).index(look["marker"])
    first = (len(_BASELINE_MARKERS) - 1 - place) % every  # markers apart from each other
    axes.plot(x, middle, label=label, markevery=(first, every), **look)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.1, linewidth=0)


def legend(figure: Figure, *panels: Axes) -> None:
    """Above the panels, in as many columns as the labels leave room for; the figure grows by it.

    One entry for each label, though no panel may have them all.
    """
    entries = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    width, height = figure.get_size_inches()
    columns = max(1, int(width / (0.45 + 0.06 * max(map(len, entries)))))
    figure.set_size_inches(width, height + 0.16 * -(-len(entries) // columns))
    handles, labels = list(entries.values()), list(entries)
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.2)


def save_all(
    figures: Mapping[str, Figure | None], folder: Path, others: str | None = None
) -> list[Path]:
    """Write those that there are into ``folder``; returns the files.

    Files there of the other names, and of names that match the pattern ``others``, are of a
    call that had more to draw: they are removed.
    """
    drawn = [
        path
        for name, figure in figures.items()
        if figure is not None
        for path in save(figure, folder / name)
    ]
    for path in sorted(folder.glob("*.*")):
        own = path.stem in figures or (others and re.fullmatch(others, path.stem))
        if own and path.suffix in (".png", ".svg") and path not in drawn and path.is_file():
            path.unlink()
    return drawn


def save(figure: Figure, path: Path) -> list[Path]:
    """As PNG and SVG, without dates and versions."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
        figure.set_layout_engine(None)  # otherwise each file has it solved anew
    whole = figure.get_tightbbox(renderer).padded(0.1)
    files = []
    for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        content = io.BytesIO()
        figure.savefig(content, format=ending, metadata=metadata, bbox_inches=whole)
        file = path.with_name(f"{path.name}.{ending}")
        write_output(file, content.getvalue())
        files.append(file)
    return files
