"""Pictures: the right numbers in them, the same bytes each time, told apart without colour."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from residual_lab.tables import load_runs
from residual_lab.tables.comparison import Comparison, baselines_first, compare_groups
from residual_lab.tables.cost_plots import cost, pareto_frontier
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.plots import differences, draw, loss_curves
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
    assert remarks == {"no run finished", "one seed: no evidence"}


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
