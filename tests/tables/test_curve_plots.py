"""A metric against keys of the configuration: lines, level lines and maps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from residual_lab.errors import LabError
from residual_lab.tables import load_runs
from residual_lab.tables.comparison import Comparison, by_seed, compare_groups, compared
from residual_lab.tables.curve_plots import axis_curve, grid_map, sensitivity
from residual_lab.tables.grouping import Group, settings_of
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.plots import draw
from tests.tables.synthetic_runs import make_run

LOSS = metric_named("val_loss")


def rows_of(folder: Path) -> list[Comparison]:
    return compare_groups(load_runs([folder]), "plain", LOSS)


def make(folder: Path, residual: str, loss: float, **overrides: Any) -> None:
    """Three seeds, ``loss`` and 0.1 to both sides; ``model__width`` is ``model.width``."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    for seed in range(3):
        make_run(folder, residual, seed, keys, val_loss=loss + 0.1 * (seed - 1))


def lines(figure: Figure) -> dict[str, dict[float, float]]:
    return {
        str(line.get_label()): dict(np.asarray(line.get_xydata()).tolist())
        for line in figure.axes[0].get_lines()
    }


def test_a_line_for_each_connection(tmp_path: Path) -> None:
    """Keys that go with the width, as that of the MLP, make no lines of their own."""
    for width in (64, 128, 256):
        make(tmp_path, "plain", 4 - width / 1000, model__width=width, model__mlp_width=4 * width)
        make(tmp_path, "dca", 3 - width / 1000, model__width=width, model__mlp_width=4 * width)
    figure = axis_curve(rows_of(tmp_path), LOSS, "model.width")
    assert figure is not None
    found = lines(figure)
    assert found["plain"] == pytest.approx({64: 3.936, 128: 3.872, 256: 3.744})
    assert found["dca"] == pytest.approx({64: 2.936, 128: 2.872, 256: 2.744})
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["64", "128", "256"]
    black = [line.get_label() for line in axes.get_lines() if line.get_color() == "#000000"]
    assert black == ["plain"]
    bands = [band.get_datalim(axes.transData).intervaly for band in axes.collections]
    assert [2.644, 3.036] in [pytest.approx(band.tolist()) for band in bands]


def test_rows_without_the_key_are_level(tmp_path: Path) -> None:
    make(tmp_path, "plain", 3.5)
    make(tmp_path, "dca", 3.2, residual__rank=None)
    for rank in (2, 4):
        make(tmp_path, "laurel_lr", 3.4 - rank / 100, residual__rank=rank)
    figure = axis_curve(rows_of(tmp_path), LOSS, "residual.rank")
    assert figure is not None
    found = lines(figure)
    assert found["laurel_lr"] == pytest.approx({2: 3.38, 4: 3.36})
    assert found["plain"] == pytest.approx({0: 3.5, 1: 3.5})
    assert found["dca"] == pytest.approx({0: 3.2, 1: 3.2})


def test_what_differs_at_one_point_makes_lines(tmp_path: Path) -> None:
    """Learning rates of a tuned table: the deeper plain is a line of its own."""
    for rate in (1e-3, 2e-3):
        make(tmp_path, "plain", 3.5 + rate, optim__lr=rate)
        make(tmp_path, "plain", 3.4 + rate, optim__lr=rate, model__layers=9)
        make(tmp_path, "dca", 3.3 + rate, optim__lr=rate)
    figure = axis_curve(rows_of(tmp_path), LOSS, "optim.lr")
    assert figure is not None
    found = lines(figure)
    assert set(found) == {"plain", "plain layers=9", "dca"}
    assert found["plain layers=9"] == pytest.approx({1e-3: 3.401, 2e-3: 3.402})


def make_tuned(folder: Path) -> list[Comparison]:
    """plain and dca, named by hand, at four rates; dca's losses fall where seeds are lost."""
    losses = {
        "A, plain": {1e-3: (3.6, 3.7), 2e-3: (3.5, 3.6), 4e-3: (None, None)},
        "B, dca": {1e-3: (3.4, 3.5), 2e-3: (3.45, 3.55), 4e-3: (None, 3.0)},
    }
    pairs = []
    base = None
    for label, rates in losses.items():
        for rate, seeds in rates.items():
            paths = []
            for seed, loss in enumerate(seeds):
                ended = {"status": "diverged"} if loss is None else {"val_loss": loss}
                keys = {"optim.lr": rate}
                paths.append(make_run(folder, label[3:], seed, keys, **ended))  # type: ignore[arg-type]
            runs = load_runs(paths)
            group = Group(label, settings_of(runs[0].config), tuple(runs))
            base = group if (label, rate) == ("A, plain", 2e-3) else base
            pairs.append(group)
    return compared([(group, base) for group in pairs], LOSS)


def marks(axes: Axes, marker: str) -> list[tuple[float, float]]:
    """Where that marker alone is, without a line and a label."""
    found = [
        line
        for line in axes.get_lines()
        if line.get_marker() == marker and str(line.get_label()).startswith("_")
    ]
    return [tuple(point) for line in found for point in np.asarray(line.get_xydata()).tolist()]


def test_sensitivity_has_a_line_for_each_row_by_its_own_name(tmp_path: Path) -> None:
    figure = sensitivity(make_tuned(tmp_path), LOSS)
    assert figure is not None
    found = lines(figure)
    assert found["A, plain"] == pytest.approx({1e-3: 3.65, 2e-3: 3.55})
    assert found["B, dca"] == pytest.approx({1e-3: 3.45, 2e-3: 3.5, 4e-3: 3.0})
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    black = {line.get_label() for line in axes.get_lines() if line.get_color() == "#000000"}
    assert "A, plain" in black
    assert "B, dca" not in black


def test_sensitivity_marks_the_rate_that_the_table_reports(tmp_path: Path) -> None:
    """Not the lower loss of the one seed that did not diverge."""
    figure = sensitivity(make_tuned(tmp_path), LOSS)
    assert figure is not None
    (axes,) = figure.axes
    rings = [
        tuple(np.asarray(line.get_xydata())[0])
        for line in axes.get_lines()
        if line.get_markerfacecolor() == "none" and len(line.get_xydata())
    ]
    assert sorted(rings) == [pytest.approx((1e-3, 3.45)), pytest.approx((2e-3, 3.55))]


def test_rates_that_diverged_have_a_cross_above_the_panel(tmp_path: Path) -> None:
    rows = make_tuned(tmp_path)
    figure = sensitivity(rows, LOSS)
    assert figure is not None
    crosses = marks(figure.axes[0], "x")
    assert [x for x, _ in crosses] == [4e-3, 4e-3]
    assert 1 < crosses[0][1] < crosses[1][1]
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["A, plain", "B, dca", "a seed diverged", "best validation loss"]
    figure = axis_curve(rows, LOSS, "optim.lr")
    assert figure is not None
    assert [x for x, _ in marks(figure.axes[0], "x")] == [4e-3, 4e-3]
    assert sensitivity([row for row in rows if not by_seed(row.group, LOSS)], LOSS) is None


def test_a_row_that_diverged_everywhere_leaves_the_others_their_looks(tmp_path: Path) -> None:
    runs = []
    for number, (name, status) in enumerate((("a", "diverged"), ("b", "finished"))):
        path = make_run(tmp_path, "dca", overrides={"model.layers": number}, status=status)
        runs.append((name, load_runs([path])))
    groups = [Group(name, settings_of(own[0].config), tuple(own)) for name, own in runs]
    figure = sensitivity(compared([(group, None) for group in groups], LOSS), LOSS)
    assert figure is not None
    looks = {line.get_label(): line.get_marker() for line in figure.axes[0].get_lines()}
    assert looks["b"] == "s"


def test_losses_and_rates_over_orders_of_magnitude_are_logarithmic(tmp_path: Path) -> None:
    """The band ends at the lowest seed: the mean less the deviation is below zero here."""
    for rate, loss in ((0.01, 1.0), (0.012, 1e-3)):
        for seed in range(3):
            keys = {"optim.lr": rate}
            make_run(tmp_path, seed=seed, overrides=keys, val_loss=loss * 10**seed)
    figure = axis_curve(rows_of(tmp_path), LOSS, "optim.lr")
    assert figure is not None
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).ymin == pytest.approx(1e-3)


def test_losses_of_one_size_are_linear(tmp_path: Path) -> None:
    make(tmp_path, "plain", 3.5, model__width=64)
    make(tmp_path, "plain", 3.4, model__width=80)
    figure = axis_curve(rows_of(tmp_path), LOSS, "model.width")
    assert figure is not None
    assert (figure.axes[0].get_xscale(), figure.axes[0].get_yscale()) == ("linear", "linear")


def test_rates_that_are_close_to_each_other_do_not_print_over_each_other(tmp_path: Path) -> None:
    for rate in (0.001, 0.0019, 0.002, 0.01):
        make_run(tmp_path, overrides={"optim.lr": rate})
    figure = axis_curve(rows_of(tmp_path), LOSS, "optim.lr")
    assert figure is not None
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    ticks = axes.get_xticks()
    seen = [
        text.get_text()
        for x, text in zip(ticks, axes.get_xticklabels(), strict=True)
        if low <= x <= high
    ]
    assert seen == ["0.001", "0.002", "0.005", "0.01"]


def test_two_baselines_of_a_curve_are_black_and_differ(tmp_path: Path) -> None:
    for rate in (1e-3, 2e-3):
        make(tmp_path, "plain", 3.5, optim__lr=rate, data__vocabulary=64)
        make(tmp_path, "plain", 3.4, optim__lr=rate, data__vocabulary=128)
    figure = axis_curve(rows_of(tmp_path), LOSS, "optim.lr")
    assert figure is not None
    drawn = figure.axes[0].get_lines()
    assert [line.get_color() for line in drawn] == ["#000000"] * 2
    assert len({line.get_marker() for line in drawn}) == 2
    assert len({line.get_linestyle() for line in drawn}) == 2


def cells(axes: Axes) -> dict[tuple[str, str], str]:
    """The text of each cell by the labels of its place."""
    right = [text.get_text() for text in axes.get_xticklabels()]
    up = [text.get_text() for text in axes.get_yticklabels()]
    return {(right[int(text.xy[0])], up[int(text.xy[1])]): text.get_text() for text in axes.texts}


def test_a_map_has_each_row_in_its_cell(tmp_path: Path) -> None:
    make(tmp_path, "plain", 3.5)
    for k, p, loss in ((1, 1, 3.4), (4, 1, 3.42), (4, 5, 3.45)):
        make(tmp_path, "denseformer", loss, residual__dilation=k, residual__period=p)
    keys = ("residual.dilation", "residual.period")
    figure = grid_map(rows_of(tmp_path), LOSS, keys)
    assert figure is not None
    axes = figure.axes[0]
    assert cells(axes) == {
        ("1", "1"): "3.400\n±0.100",
        ("4", "1"): "3.420\n±0.100",
        ("4", "5"): "3.450\n±0.100",
    }
    values = np.ma.filled(axes.collections[0].get_array(), np.nan).reshape(2, 2)
    np.testing.assert_allclose(values, [[3.4, 3.42], [np.nan, 3.45]])
    assert figure._supxlabel.get_text() == "plain 3.500"  # type: ignore[attr-defined]


def test_units_are_those_of_the_screen(tmp_path: Path) -> None:
    make(tmp_path, "plain", 3.5, model__width=64)
    figure = axis_curve(rows_of(tmp_path), metric_named("peak_memory_bytes"), "model.width")
    assert figure is not None
    assert lines(figure)["plain"] == {64: 0.25}
    assert figure.axes[0].get_ylabel() == "peak memory [GiB]"


def test_keys_that_are_not_there(tmp_path: Path) -> None:
    make(tmp_path, "plain", 3.5)
    rows = rows_of(tmp_path)
    with pytest.raises(LabError, match=r"model\.widht: no row .*did you mean model\.width\?"):
        axis_curve(rows, LOSS, "model.widht")
    with pytest.raises(LabError, match=r"residual\.period: no row"):
        grid_map(rows, LOSS, ("model.width", "residual.period"))
    assert axis_curve(rows, LOSS, "model.name") is None
    assert axis_curve([], LOSS, "model.width") is None


def test_asked_for_they_are_among_the_pictures(tmp_path: Path) -> None:
    for k, p in ((1, 1), (1, 2), (2, 1)):
        make(tmp_path / "runs", "denseformer", 3.4, residual__dilation=k, residual__period=p)
    runs = load_runs([tmp_path / "runs"])
    grid = ("residual.dilation", "residual.period")
    first, second = (draw(runs, tmp_path / n, axis=grid[0], grid=grid) for n in ("one", "two"))
    names = [path.name for path in first]
    assert {"axis.png", "axis.svg", "grid.png", "grid.svg"} < set(names)
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
