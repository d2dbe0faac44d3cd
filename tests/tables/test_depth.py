"""Weights over depth: from inspection.json into pictures, and into the table of ``inspect``."""

import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from residual_lab.errors import LabError
from residual_lab.tables import load_runs
from residual_lab.tables.comparison import Comparison, compare_groups
from residual_lab.tables.depth import scalars, title_of, triangles
from residual_lab.tables.depth_plots import cosine, learned_weights, weight_maps
from residual_lab.tables.depth_table import depth_table
from residual_lab.tables.grouping import Group, group_runs
from residual_lab.tables.metrics import metric_named
from residual_lab.tables.plots import draw, draw_depth
from tests.tables.inspected_runs import LAYERS, TRIANGLE, inspect_made, make_inspected
from tests.tables.synthetic_runs import make_run


@pytest.fixture
def rows(tmp_path: Path) -> list[Comparison]:
    make_inspected(tmp_path)
    return compare_groups(load_runs([tmp_path]), "plain", metric_named("val_loss"))


@pytest.fixture
def groups(rows: list[Comparison]) -> dict[str, Group]:
    return {row.group.label: row.group for row in rows}


def line(axes: Axes, label: str) -> dict[float, float]:
    (found,) = [one for one in axes.get_lines() if one.get_label() == label]
    return dict(np.asarray(found.get_xydata()).tolist())


def test_weights_of_layers_are_lines_of_means_over_seeds(rows: list[Comparison]) -> None:
    figure = learned_weights(rows)
    assert figure is not None
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert list(panels) == ["γ₀", "γ₁", "γ₂", "γ₃", "α", "β"]
    assert line(panels["α"], "laurel_rw") == {1: 0.5, 2: 1.5, 3: 2.5, 4: 3.5}
    assert line(panels["β"], "laurel_rw") == {1: 1.5, 2: 0.5, 3: -0.5, 4: -1.5}
    assert line(panels["γ₁"], "laurel_pa") == pytest.approx({2: 0.3, 4: 0.3})
    (band,) = panels["α"].collections
    low, high = band.get_datalim(panels["α"].transData).intervaly
    deviation = math.sqrt(0.5)
    assert (low, high) == pytest.approx((0.5 - deviation, 3.5 + deviation))
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"laurel_pa", "laurel_rw"}


def test_stages_of_a_resnet_have_layers_of_their_own(tmp_path: Path) -> None:
    """The first block of the second stage changes the shape and has no connection."""
    model = {"name": "resnet_desk", "family": "resnet", "block": "basic", "stages": [4, 4]}
    model |= {"base_width": 16, "stem": "cifar", "channels": 1, "classes": 10}
    run = make_run(tmp_path, "laurel_rw", overrides={"model": model})
    stages = {
        "stage 1 alpha": [1, 2, 3, 4],
        "stage 2 alpha": [5, 6, 7],
        "stage 2 gamma": [[1, 2]] * 3,
    }
    inspect_made(run, cosine=None, **stages, **{"stage 2 sums": np.ones((4, 4))})
    (group,) = group_runs(load_runs([tmp_path]))
    found = scalars(group)
    assert list(found) == ["stage 1 alpha", "stage 2 alpha", "stage 2 gamma_0", "stage 2 gamma_1"]
    assert found["stage 2 alpha"].tolist() == [[5, 6, 7]]
    assert list(triangles(group)) == ["stage 2 sums"]
    titles = [title_of(name) for name in found]
    assert titles == ["α, stage 1", "α, stage 2", "γ₀, stage 2", "γ₁, stage 2"]
    drawn = {path.stem for path in draw_depth([group], tmp_path / "pictures")}
    assert drawn == {"learned_weights", "weights_laurel_rw"}
    assert "α, stage 2" in [column.title for column in depth_table([group]).columns]


def test_as_many_lags_as_layers_are_no_sums_over_depth(groups: dict[str, Group]) -> None:
    assert list(triangles(groups["laurel_pa"])) == []
    assert list(scalars(groups["laurel_pa"])) == ["gamma_0", "gamma_1", "gamma_2", "gamma_3"]
    assert list(triangles(groups["denseformer"])) == ["alpha"]


def test_branches_are_layers(tmp_path: Path) -> None:
    shape = {"model.layers": 2, "residual.granularity": "branch"}
    inspect_made(make_run(tmp_path, "denseformer", overrides=shape), alpha=TRIANGLE)
    (group,) = group_runs(load_runs([tmp_path]))
    assert list(triangles(group)) == ["alpha"]


def test_maps_have_each_weight_in_its_place(groups: dict[str, Group]) -> None:
    figure = weight_maps(groups["denseformer"])
    assert figure is not None
    axes = figure.axes[0]
    (cells,) = [one for one in axes.collections if isinstance(one, PolyCollection)]
    values = {
        (round(path.vertices[:4, 1].mean()), round(path.vertices[:4, 0].mean())): value
        for path, value in zip(cells.get_paths(), np.asarray(cells.get_array()), strict=True)
    }
    expected = {
        (row, source): 1.5 * TRIANGLE[row, source]
        for row in range(1, LAYERS + 1)
        for source in range(row + 1)
    }
    assert values == pytest.approx(expected)
    marked = [tuple(place) for one in axes.collections[1:] for place in one.get_offsets().tolist()]
    assert sorted(marked) == [(0, row) for row in range(1, LAYERS + 1)]
    assert cells.norm.vmin == -cells.norm.vmax == -1.5
    assert weight_maps(groups["laurel_rw"]) is None


def test_sums_like_plains_are_drawn_as_their_difference_to_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, "dca", overrides={"model.layers": 2})
    b = [[1.1, math.nan, math.nan], [1.0, 0.9, math.nan], [1.0, 1.0, -0.5]]
    inspect_made(run, b_q=b, b_q_std=np.array(b) / 10)
    (group,) = group_runs(load_runs([tmp_path]))
    figure = weight_maps(group)
    assert figure is not None
    first, second = figure.axes[:2]
    assert [axes.get_title() for axes in (first, second)] == ["b (q) − 1", "b (q, std)"]
    assert list(first.collections[0].get_array()) == pytest.approx([0.1, 0, -0.1, 0, 0, -1.5])
    assert second.collections[0].get_array()[0] == pytest.approx(0.11)


def test_negative_and_positive_of_one_size_are_equally_dark(groups: dict[str, Group]) -> None:
    """So that a grey print shows sizes; signs are marked."""
    figure = weight_maps(groups["denseformer"])
    assert figure is not None
    (cells,) = [one for one in figure.axes[0].collections if isinstance(one, PolyCollection)]
    grey = np.array([0.299, 0.587, 0.114])
    for size in (0.05, 0.2, 1.0):
        plus, minus = (cells.to_rgba(value)[:3] @ grey for value in (size, -size))
        assert abs(plus - minus) < 0.12
        assert max(plus, minus) < cells.to_rgba(0.0)[:3] @ grey


def test_cosines_are_lines_from_the_embedding_on(rows: list[Comparison]) -> None:
    figure = cosine(rows)
    assert figure is not None
    points = line(figure.axes[0], "plain")
    assert points == pytest.approx({0: 1.0, 1: 0.775, 2: 0.55, 3: 0.325, 4: 0.1})
    labels = {one.get_label() for one in figure.axes[0].get_lines()}
    assert labels == {"plain", "laurel_pa", "laurel_rw"}


def test_pictures_are_the_same_files_each_time(tmp_path: Path) -> None:
    make_inspected(tmp_path / "runs")
    runs = load_runs([tmp_path / "runs"])
    first = draw(runs, tmp_path / "first")
    second = draw(runs[::-1], tmp_path / "second")
    names = [path.name for path in first if path.suffix == ".png"]
    assert names[-3:] == ["learned_weights.png", "weights_denseformer.png", "cosine.png"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_files_of_different_rows_have_different_names(tmp_path: Path) -> None:
    for name in ("a b", "a/b"):
        inspect_made(make_run(tmp_path / name.replace("/", "-"), "denseformer"), alpha=[[0.0]])
    runs = load_runs([tmp_path])
    groups = [
        Group(name, {"residual.name": name}, (run,))
        for name, run in zip(("a b", "a/b"), runs, strict=True)
    ]
    for run in runs:
        run.config["model"]["layers"] = 0
    drawn = {path.name for path in draw_depth(groups, tmp_path / "pictures")}
    assert {"weights_a_b.png", "weights_a_b_.png"} < drawn


def test_titles() -> None:
    names = ("alpha", "gamma_10", "b_q_std", "lambda_own", "weights")
    assert [title_of(name) for name in names] == ["α", "γ₁₀", "b (q, std)", "λ (own)", "weights"]


def test_the_table_has_a_line_for_each_depth(groups: dict[str, Group]) -> None:
    table = depth_table([groups["denseformer"], groups["plain"]])
    lines = {(a.text, b.text): cells for a, b, *cells in table.rows}
    assert [column.key for column in table.columns[2:]] == [
        *("alpha_embedding", "alpha_others", "alpha_newest", "cosine_to_embedding")
    ]
    embedding, others, newest, similarity = lines["denseformer", "3"]
    assert embedding.value == pytest.approx(-0.75)
    assert others.value == pytest.approx(0.045)
    assert newest.value == pytest.approx(1.5)
    assert newest.details == {"std": pytest.approx(math.sqrt(0.5)), "n": 2}
    assert newest.text == "1.50 ± 0.71"
    assert similarity.text == "–"
    assert lines["denseformer", "0"][0].text == "–"
    assert lines["plain", "4"][3].value == pytest.approx(0.1)
    one = depth_table([groups["laurel_rw"]])
    assert [column.key for column in one.columns] == [
        *("layer", "alpha", "beta", "cosine_to_embedding")
    ]
    assert one.column("alpha")[1].value == 0.5


def test_without_weights_the_table_says_so(groups: dict[str, Group]) -> None:
    table = depth_table([groups["dca_k"]])
    assert table.rows == ()
    assert table.notes == ("No weights over depth, and no cosines.",)


@pytest.mark.parametrize("content", ["{", "[]", '{"weights": 3}'])
def test_a_broken_inspection_is_refused(tmp_path: Path, content: str) -> None:
    run = make_run(tmp_path)
    (run / "inspection.json").write_text(content)
    with pytest.raises(LabError, match=r"inspection\.json: cannot be read .*residual-lab inspect"):
        load_runs([run])[0].inspection  # noqa: B018
