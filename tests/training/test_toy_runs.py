"""The low-rank toy goes through the same runs, tables and costs as a language model."""

from pathlib import Path

import pytest

from residual_lab.config import compose
from residual_lab.costs.bench import bench
from residual_lab.costs.estimate import estimate
from residual_lab.costs.kept import KeptByPlain
from residual_lab.run_directory import RunDirectory
from residual_lab.tables import compare, load_runs

from .conftest import Lab, assert_same_weights

TOY = (
    *("model=low_rank_linear", "data=linear_map", "optim=sgd", "hardware=cpu"),
    *("budget.tokens=100000", "budget.batch_tokens=100", "evaluation.batch_sequences=1000"),
    *("evaluation.every_steps=500", "run.checkpoint_every_steps=500"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


def toy(folder: Path, *overrides: str) -> RunDirectory:
    return RunDirectory.create(compose([*TOY, f"run.dir={folder}", *overrides]))


@pytest.fixture(scope="module")
def runs(folder: Path, lab: Lab) -> dict[str, RunDirectory]:
    """1,000 steps of 100 examples, as in the paper's figure."""
    made = {name: toy(folder, f"residual={name}") for name in ("plain", "grn_v1")}
    for run in made.values():
        assert lab.execute(run) == 0
    return made


def test_one_weight_a_layer_halves_the_error_of_a_random_map(runs: dict[str, RunDirectory]) -> None:
    """Figure 1: about 60 against 33. No map of αI and rank 30 can be better than 30 or so."""
    plain, grn = (runs[name].result for name in ("plain", "grn_v1"))
    assert plain is not None and grn is not None
    assert 54 < plain["test_loss"] < 66
    assert 29 < grn["test_loss"] < 36
    assert plain["test_loss"] == pytest.approx(plain["val_loss"], rel=0.05)


def test_the_result_has_what_a_run_has_but_no_perplexity(runs: dict[str, RunDirectory]) -> None:
    result = runs["grn_v1"].result
    assert result is not None
    assert result["perplexity"] is None
    assert (result["params"], result["params_connection"]) == (6000 + 66, 66)
    assert (result["steps"], result["tokens"]) == (1000, 100_000)
    assert result["flops_per_token"] > 0 and result["step_time_s"]["median"] > 0
    assert result["peak_memory_bytes"]["value"] > 0


def test_tables_compare_toys(runs: dict[str, RunDirectory], folder: Path) -> None:
    table = compare(load_runs([folder]))
    assert [cell.text for cell in table.column("row")] == ["plain", "grn_v1"]
    assert "perplexity" not in [column.key for column in table.columns]


def test_at_ten_times_the_learning_rate_only_the_residual_network_diverges(
    tmp_path: Path, lab: Lab
) -> None:
    fast = ("optim.lr=0.1", "budget.tokens=20000")
    assert lab.execute(toy(tmp_path, "residual=plain", *fast)) == 3
    assert lab.execute(toy(tmp_path, "residual=grn_v1", *fast)) == 0


def test_momentum_is_restored_and_the_identity_is_learned(tmp_path: Path, lab: Lab) -> None:
    """A run of 8 steps in one go, and one that goes on from its checkpoint after 4."""
    short = ("budget.tokens=800", "optim.momentum=0.9", "data.target=identity", "optim.lr=0.1")
    straight = toy(tmp_path / "a", *short, "run.checkpoint_every_steps=3")
    assert lab.execute(straight) == 0
    resumed = toy(tmp_path / "b", *short, "run.checkpoint_every_steps=3")
    lab.cut_off(resumed, 5)
    assert lab.execute(resumed) == 0
    assert_same_weights(straight, resumed)
    assert (straight.result or {})["test_loss"] < 0.5


def test_costs_of_toys_are_counted_and_measured() -> None:
    plain, grn = (compose([*TOY, f"residual={name}"]) for name in ("plain", "grn_v1"))
    found = estimate(grn)
    assert found.parameters == 6066
    assert found.memory.optimizer == 0  # SGD without momentum keeps nothing
    assert estimate(compose([*TOY, "optim.momentum=0.9"])).memory.optimizer >= 4 * 6000
    assert found.memory.weights == 4 * 6066
    # Plain keeps each layer's input; GRN-v1 the input and every f_t beside them.
    assert KeptByPlain(plain).costs_of(grn) == (66, pytest.approx(11 / 10))
    timed = bench({"plain": plain, "grn": grn}, batch=50, rounds=2)
    assert set(timed.measurements["grn"].seconds) == {"training", "forward"}
