"""The look of every picture: print-ready, told apart without colour, the same bytes each time."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from residual_lab.files import write_output
from residual_lab.tables.comparison import Comparison

BASELINE_COLOUR = "#000000"
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = "s^DvPX<>"
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
    "lines.markersize": 5.5,
    "lines.markeredgewidth": 0.4,
    "savefig.dpi": 200,
    "svg.hashsalt": "residual-lab",  # otherwise the names inside an SVG are drawn at random
}


def look_of(rows: Sequence[Comparison], row: Comparison) -> dict[str, Any]:
    """Colour, marker and line of a row, the same in every picture; baselines are black."""
    if row.is_baseline:
        return series_look(None)
    return series_look([other for other in rows if not other.is_baseline].index(row))


def series_look(index: int | None) -> dict[str, Any]:
    """Colour, marker and line of one of several lines; None: of the baseline."""
    look: dict[str, Any] = {"color": BASELINE_COLOUR, "marker": "o", "linestyle": "-"}
    if index is not None:
        look = {
            "color": _COLOURS[index % len(_COLOURS)],
            "marker": MARKERS[index % len(MARKERS)],
            "linestyle": _LINES[(index + 1) % len(_LINES)],
        }
    return look | {"markeredgecolor": "white"}


def line_with_band(
    axes: Axes, x: Any, middle: Any, low: Any, high: Any, look: dict[str, Any], label: str
) -> None:
    """A line with its markers; in its colour, paler, what is between ``low`` and ``high``."""
    every = max(1, len(middle) // 6)
    first = (every - 1 - MARKERS.find(look["marker"])) % every  # markers apart from each other
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
    columns = max(1, int(width / (0.45 + 0.065 * max(map(len, entries)))))
    figure.set_size_inches(width, height + 0.16 * -(-len(entries) // columns))
    handles, labels = list(entries.values()), list(entries)
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.2)


def save_all(figures: Mapping[str, Figure | None], folder: Path) -> list[Path]:
    """Write those that there are into ``folder``; returns the files."""
    return [
        path
        for name, figure in figures.items()
        if figure is not None
        for path in save(figure, folder / name)
    ]


def save(figure: Figure, path: Path) -> list[Path]:
    """As PNG and SVG, without dates and versions."""
    FigureCanvasAgg(figure)
    files = []
    for ending, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        content = io.BytesIO()
        figure.savefig(content, format=ending, metadata=metadata, bbox_inches="tight")
        file = path.with_name(f"{path.name}.{ending}")
        write_output(file, content.getvalue())
        files.append(file)
    return files
