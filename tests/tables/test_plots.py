"""Pictures: the right numbers in them, the same bytes each time, told apart without colour."""

import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from residual_lab.tables import load_runs, plots
from residual_lab.tables.comparison import Comparison, baselines_first, compare_groups, compared
from residual_lab.tables.cost_plots import cost, pareto_frontier
from residual_lab.tables.grouping import Group, settings_of
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.plot_style import look_of
from residual_lab.tables.plots import (
    differences,
    draw,
    draw_rows,
    draw_sensitivity,
    loss_curves,
)
from tests.tables.synthetic_runs import make_run

LOSS = metric_named("val_loss")


@pytest.fixture
def rows(tmp_path: Path) -> list[Comparison]:
    """plain and three connections of three seeds, one of one seed, one that diverged."""
    for seed in range(3):
        make_run(tmp_path, seed=seed, val_loss=3.5 + 0.02 * seed)
        for number, residual in enumerate(("laurel_lr", "laurel_pa", "laurel_rw")):
            loss = 3.48 + 0.02 * seed + 0.001 * seed * number
            step = {"median": 0.5 + 0.1 * number}
            make_run(tmp_path, residual, seed, val_loss=loss, step_time_s=step)
    make_run(tmp_path, "rezero", val_loss=3.4)
    make_run(tmp_path, "highway", status="diverged")
    return baselines_first(compare_groups(load_runs([tmp_path]), "plain", LOSS))


def lines(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The points of each labelled line."""
    found = {}
    for line in axes.get_lines():
        points = np.asarray(line.get_xydata()).tolist()
        found[str(line.get_label())] = [(x, y) for x, y in points]
    return found


def test_curves_are_means_over_seeds_and_differences_are_paired(rows: list[Comparison]) -> None:
    figure = loss_curves(rows)
    assert figure is not None
    left, right = figure.axes
    tokens, loss = lines(left)["plain"][-1]
    assert (tokens, loss) == (300 * 4096, pytest.approx(3.52, abs=0.005))
    assert len(lines(left)["plain"]) == 15
    _, gap = lines(right)["laurel_lr"][-1]
    assert gap == pytest.approx(-0.02, abs=0.0005)
    assert "plain" not in lines(right)
    assert "highway" not in lines(left)


def test_rows_are_told_apart_without_colour(rows: list[Comparison]) -> None:
    figure = loss_curves(rows)
    assert figure is not None
    looks = [(line.get_marker(), line.get_linestyle()) for line in figure.axes[0].get_lines()]
    assert len(set(looks)) == len(looks) == 5


def test_the_frontier_is_what_no_other_point_beats() -> None:
    points = [(2.0, 3.0), (1.0, 4.0), (3.0, 3.5), (4.0, 1.0), (1.0, 5.0), (4.0, 1.0)]
    expected = [
        p for p in sorted(set(points))
        if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)
    ]  # fmt: skip
    assert pareto_frontier(points) == expected == [(1.0, 4.0), (2.0, 3.0), (4.0, 1.0)]
    upward = [(x, -y) for x, y in points]
    assert pareto_frontier(upward, lower_is_better=False) == [(x, -y) for x, y in expected]


def test_cost_has_a_panel_for_each_cost_that_can_be_compared(
    rows: list[Comparison], tmp_path: Path
) -> None:
    figure = cost(rows[:5], LOSS)
    assert figure is not None
    assert [axes.get_xlabel() for axes in figure.axes] == ["step time [s]", "peak memory [GiB]"]
    make_run(tmp_path / "other", "laurel_rw", seed=9, device="another processor")
    runs = load_runs([tmp_path])
    assert cost(compare_groups(runs, "plain", LOSS), LOSS) is None


def test_differences_show_every_row_also_those_that_say_nothing(rows: list[Comparison]) -> None:
    figure = differences(rows, LOSS)
    assert figure is not None
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == ["highway", "laurel_lr", "laurel_pa", "laurel_rw", "rezero"]
    remarks = {text.get_text() for text in axes.texts}
    said = {"no run finished", "one seed: no evidence", "no spread: no evidence"}
    assert remarks == said  # the gap of one row is the same at every seed


def with_baselines(
    folder: Path, baselines: dict[str, str], **losses: float | None
) -> list[Comparison]:
    """Two seeds a row, a loss of None diverged; rows are named by their numbers of layers."""
    groups = {}
    for number, (name, loss) in enumerate(losses.items()):
        keys = {"model.layers": number}
        ended: list[dict[str, Any]] = [
            {"status": "diverged"} if loss is None else {"val_loss": loss + 0.01 * number * seed}
            for seed in (0, 1)
        ]
        runs = load_runs(
            [make_run(folder, seed=s, overrides=keys, **ending) for s, ending in enumerate(ended)]
        )
        groups[name] = Group(name, settings_of(runs[0].config), tuple(runs))
    return compared([(groups[name], groups[baselines[name]]) for name in groups], LOSS)


def test_a_row_whose_baseline_did_not_finish_says_so(tmp_path: Path) -> None:
    baselines = {"lost": "lost", "a": "lost", "plain": "plain", "b": "plain", "c": "plain"}
    losses = {"lost": None, "a": 3.0, "plain": 3.5, "b": 3.4, "c": None}
    figure = differences(with_baselines(tmp_path, baselines, **losses), LOSS)
    assert figure is not None
    (axes,) = figure.axes
    remarks = {text.xy[1]: text.get_text() for text in axes.texts}  # type: ignore[attr-defined]
    assert remarks == {0: "its baseline did not finish", 2: "no run finished"}


def test_several_baselines_are_black_and_told_apart(tmp_path: Path) -> None:
    names = [f"plain{n}" for n in range(9)]
    rows = with_baselines(tmp_path, {n: n for n in names}, **dict.fromkeys(names, 3.5))
    looks = [look_of(rows, row) for row in rows]
    assert {look["color"] for look in looks} == {"#000000"}
    assert len({(look["marker"], look["linestyle"]) for look in looks}) == 9
    alone = {(look["marker"], look["markerfacecolor" if n > 4 else "color"]) for n, look in
             enumerate(looks)}  # fmt: skip
    assert len(alone) == 9
    figure = loss_curves(rows)
    assert figure is not None
    assert len({line.get_linestyle() for line in figure.axes[0].get_lines()[:4]}) == 4


def small_names(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_yticklabels(minor=True)]


def test_baselines_are_named_where_they_differ(tmp_path: Path) -> None:
    one = {"p": "p", "a": "p"}
    two = {**one, "q": "q", "b": "q"}
    three = {**two, "r": "r", "c": "r"}
    found = []
    for baselines in (one, two, three):
        rows = with_baselines(
            tmp_path / str(len(baselines)), baselines, **dict.fromkeys(baselines, 3.5)
        )
        figure = differences(rows, LOSS)
        assert figure is not None
        (axes,) = figure.axes
        found.append((axes.get_xlabel().partition(",")[0], small_names(axes)))
    assert found == [
        ("Δ val loss to p", []),
        ("Δ val loss to p or q", ["vs q"]),
        ("Δ val loss to its baseline", ["vs p", "vs q", "vs r"]),
    ]


def costs_in(axes: Axes) -> dict[str, float]:
    """By label, where a point is on the x axis."""
    return {str(bar.get_label()): bar.lines[0].get_xdata()[0] for bar in axes.containers}  # type: ignore[attr-defined]


def test_step_times_measured_side_by_side_are_what_cost_shows(rows: list[Comparison]) -> None:
    measured = {"plain": 0.25, "laurel_lr": 0.5, "rezero": 0.75, "another": 9.0}
    finished = [row for row in rows if row.group.finished]
    figure = cost(finished, LOSS, measured)
    assert figure is not None
    times, memory = figure.axes
    assert (times.get_xlabel(), memory.get_xlabel()) == ("step time [s]", "peak memory [GiB]")
    assert costs_in(times) == {"plain": 0.25, "laurel_lr": 0.5, "rezero": 0.75}
    assert len(costs_in(memory)) == 5
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 5
    own = cost(finished, LOSS)
    assert own is not None
    assert costs_in(own.axes[0])["laurel_pa"] == pytest.approx(0.6)


def test_without_step_times_measured_side_by_side_cost_has_none(
    rows: list[Comparison], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for none in ({}, {"another": 1.0}):
        figure = cost(rows[:5], LOSS, none)
        assert figure is not None
        assert [axes.get_xlabel() for axes in figure.axes] == ["peak memory [GiB]"]
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "cost", lambda *given: drawn.append(given[2]))
    draw_rows(rows[:1], tmp_path, LOSS, step_times={"plain": 1.0})
    draw([run for row in rows for run in row.group.runs], tmp_path)
    assert drawn == [{"plain": 1.0}, None]


def test_units_are_those_of_the_data(tmp_path: Path) -> None:
    synthetic = {"data.source": "synthetic"}
    make_run(tmp_path / "toy", overrides=synthetic, val_loss=3.5)
    make_run(tmp_path / "images", overrides={"data.source": "cifar"}, val_loss=3.5)
    make_run(tmp_path / "text", val_loss=3.5)
    found = []
    for folders in (("toy",), ("text",), ("images",), ("text", "toy")):
        runs = load_runs([tmp_path / folder for folder in folders])
        figure = loss_curves(compare_groups(runs, "plain", LOSS))
        assert figure is not None
        axes = figure.axes[0]
        found.append((axes.get_ylabel(), axes.get_xlabel()))
    assert found == [
        ("validation loss (squared error)", "training examples"),
        ("validation loss (nats/token)", "training tokens"),
        ("validation loss (nats/image)", "training images"),
        ("validation loss (nats/token or squared error)", "training tokens or examples"),
    ]


def test_losses_over_orders_of_magnitude_are_logarithmic_and_whole(tmp_path: Path) -> None:
    scales = {}
    for loss in (1e-3, 1.0, -0.1):
        make_run(tmp_path / str(loss), val_loss=loss)
        figure = loss_curves(compare_groups(load_runs([tmp_path / str(loss)]), "plain", LOSS))
        assert figure is not None
        scales[loss] = figure.axes[0].get_yscale()
        if loss == 1e-3:
            low, high = figure.axes[0].get_ylim()
            assert 0 < low < 0.01
            assert high > 4.6  # the first of all: nothing is cut off
    assert scales == {1e-3: "log", 1.0: "linear", -0.1: "linear"}


def test_pictures_of_another_call_are_removed_and_nothing_else(
    rows: list[Comparison], tmp_path: Path
) -> None:
    kept = ["mine.png", "cost.txt", "weights.png", "sensitivity.png", "my_axis.png"]
    stale = ["axis.png", "axis.svg", "grid.png", "cosine.svg", "weights_gone.png"]
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name in (*kept, *stale):
        (folder / name).touch()
    (folder / "weights_folder.png").mkdir()
    drawn = draw_rows(rows, folder, LOSS)
    names = {*kept, "weights_folder.png", *(path.name for path in drawn)}
    assert {path.name for path in folder.iterdir()} == names
    assert draw_sensitivity([], folder, LOSS) == []
    assert {path.name for path in folder.iterdir()} == names - {"sensitivity.png"}


def test_a_picture_is_laid_out_once_and_drawn_once_a_format(
    rows: list[Comparison], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes the time. Matplotlib's own way is two layouts and four drawings."""
    calls: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        own = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: calls.update([name]) or own(*given))

    count(ConstrainedLayoutEngine, "execute")
    count(Figure, "draw")
    draw_rows(rows, tmp_path, LOSS)
    assert calls == {"execute": 3, "draw": 6}


def test_a_redrawn_picture_is_the_same_file(rows: list[Comparison], tmp_path: Path) -> None:
    runs = [run for row in rows for run in row.group.runs]
    first = draw(runs, tmp_path / "first")
    second = draw(runs[::-1], tmp_path / "second")
    names = [f"{n}.{e}" for n in ("loss_curves", "cost", "difference") for e in ("png", "svg")]
    assert [path.name for path in first] == [path.name for path in second] == names
    for before, after in zip(first, second, strict=True):
        assert before.read_bytes() == after.read_bytes()
    for path in first:
        if path.suffix == ".svg":
            ElementTree.parse(path)
            assert "dc:date" not in path.read_text()
        else:
            assert path.read_bytes().startswith(b"\x89PNG")


def test_pictures_without_data_are_left_out(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    (path / "metrics.jsonl").unlink()
    drawn = draw(load_runs([path]), tmp_path / "plots")
    assert [file.name for file in drawn] == ["cost.png", "cost.svg"]
