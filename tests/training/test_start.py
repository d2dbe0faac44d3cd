"""Runs that start from the weights of another run."""

import shutil
from pathlib import Path

import pytest
import torch

from residual_lab import build_model
from residual_lab.config import compose
from residual_lab.data import build_data_module
from residual_lab.errors import ConfigError, LabError
from residual_lab.run_directory import RunDirectory, config_hash, read_metrics
from residual_lab.training import start

from .conftest import Lab, assert_same_weights, final_weights


@pytest.fixture(scope="module")
def plain(lab: Lab) -> RunDirectory:
    return lab.trained("residual=plain")


def validation_losses(run: RunDirectory) -> dict[int, float]:
    rows = read_metrics(run.metrics)
    return {row["step"]: row["val_loss"] for row in rows if "val_loss" in row}


def continued(lab: Lab, run: RunDirectory, *overrides: str) -> RunDirectory:
    return lab.run(f"start.run={run.path}", "budget.steps=5", *overrides)


@pytest.fixture(scope="module")
def retrofitted(lab: Lab, plain: RunDirectory) -> RunDirectory:
    """A plain run that goes on with DCA."""
    run = continued(lab, plain, "residual=dca")
    assert lab.execute(run) == 0
    return run


@pytest.mark.parametrize("residual", ["plain", "denseformer"])
def test_the_first_validation_is_the_other_runs_last_bit_for_bit(
    lab: Lab, plain: RunDirectory, residual: str
) -> None:
    """At identity the function that a retrofitted model computes is the one that was trained."""
    run = continued(lab, plain, f"residual={residual}")
    assert lab.execute(run) == 0
    losses = validation_losses(run)
    assert list(losses) == [0, 4, 5]
    assert losses[0] == validation_losses(plain)[8]
    assert losses[5] != losses[0]


def test_norms_of_keys_and_values_start_as_that_of_the_queries(
    plain: RunDirectory, retrofitted: RunDirectory
) -> None:
    """DCA has three norms for plain's one; GRN adds in another order, so only nearly the same."""
    weights = final_weights(plain)
    assert not torch.equal(weights["layers.0.attention.norm.weight"], torch.ones(16))  # trained
    model = build_model(retrofitted.config)
    assert start.start_from(model, retrofitted.config, "") == 0
    state = model.state_dict()
    for norm in ("norm", "norm_k", "norm_v"):
        assert torch.equal(
            state[f"layers.1.attention.{norm}.weight"], weights["layers.1.attention.norm.weight"]
        )
    first, last = validation_losses(retrofitted)[0], validation_losses(plain)[8]
    assert first == pytest.approx(last, rel=1e-6)


def test_the_connection_starts_as_its_own_seed_says(retrofitted: RunDirectory) -> None:
    model = build_model(retrofitted.config)
    expected = {name: value.clone() for name, value in model.connection.state_dict().items()}
    start.start_from(model, retrofitted.config, "")
    assert expected
    assert all(
        torch.equal(model.connection.state_dict()[name], expected[name]) for name in expected
    )


def test_the_data_go_on_where_the_other_run_stopped(
    lab: Lab, plain: RunDirectory, retrofitted: RunDirectory
) -> None:
    """Step 0 of the second run reads what step 8 of the first would; a third one follows on."""
    assert plain.result is not None and retrofitted.result is not None
    assert plain.result["first_sequence"] == 0
    assert retrofitted.result["first_sequence"] == 8 * 8
    after, before = build_data_module(retrofitted.config), build_data_module(plain.config)
    after.first_sequence, before.start_step = 8 * 8, 8
    assert torch.equal(*(next(iter(data.train_dataloader())) for data in (after, before)))
    third = continued(lab, retrofitted, "residual=dca", "budget.batch_tokens=64")
    model, hashed = build_model(third.config), plain.result["data_fingerprint"]
    assert start.start_from(model, third.config, hashed) == 8 * 8 + 5 * 8
    assert_same(model.state_dict(), final_weights(retrofitted))  # its connection too
    assert start.start_from(model, third.config, "other data") == 0
    other_order = third.config.model_copy(update={"seed": 1})
    assert start.start_from(model, other_order, hashed) == 0


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_resumed_run_needs_the_other_no_more(
    lab: Lab, plain: RunDirectory, retrofitted: RunDirectory, tmp_path: Path
) -> None:
    """Killed at step 4, its start gone, resumed from step 3: bit for bit."""
    moved = tmp_path / plain.path.name
    shutil.copytree(plain.path, moved)
    run = continued(lab, RunDirectory.open(moved), "residual=dca")
    lab.cut_off(run, 4)
    shutil.rmtree(moved)
    assert lab.execute(RunDirectory.open(run.path)) == 0
    assert_same_weights(run, retrofitted)
    assert validation_losses(run) == validation_losses(retrofitted)
    assert (run.result or {})["first_sequence"] == 8 * 8


def test_the_hash_counts_the_name_of_the_other_run_not_its_place(
    lab: Lab, plain: RunDirectory, tmp_path: Path
) -> None:
    copied = tmp_path / plain.path.name
    shutil.copytree(plain.path, copied)
    renamed = tmp_path / "another"
    shutil.copytree(plain.path, renamed)
    here, there, other = (
        continued(lab, RunDirectory.open(path), "residual=plain").config
        for path in (plain.path, copied, renamed)
    )
    assert config_hash(here) == config_hash(there) != config_hash(other)
    assert config_hash(here) != config_hash(here.model_copy(update={"start": plain.config.start}))
    assert here.start.run == str(plain.path)


def refusal(lab: Lab, run: RunDirectory, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        continued(lab, run, *overrides)
    (line,) = caught.value.problems
    assert "\n" not in line
    return line


def test_other_models_and_runs_without_weights_are_refused_before_any_work(
    lab: Lab, plain: RunDirectory, tmp_path: Path
) -> None:
    for key, theirs, own in (("layers", "2", "3"), ("norm", "layernorm", "rmsnorm")):
        line = refusal(lab, plain, f"model.{key}={own}")
        assert line.startswith(f"start.run={plain.path}: its model has {key}={theirs}, this one ")
        assert f"{key}={own}; they must be the same" in line
    refusal(lab, plain, "model.width=32")  # one line, for the keys too that follow from it
    continued(lab, plain, "model.dropout=0")  # may differ
    unfinished = lab.run("residual=plain")
    assert "it is unfinished; must be the directory of a finished run" in refusal(lab, unfinished)
    with pytest.raises(ConfigError, match=r"^start\.run: .*absent: no such folder"):
        compose([f"start.run={tmp_path}/absent"])


def test_weights_that_do_not_fit_are_refused_in_one_line(
    lab: Lab, plain: RunDirectory, retrofitted: RunDirectory, tmp_path: Path
) -> None:
    """And the run is left as if it had not been tried."""
    expected = {
        "residual=plain": "its layers.0.attention.norm_k.weight (16,) has no place in this model",
        "residual=dca residual.dynamic_weights=per_grn": "its connection.w is (12, 16), not (7,",
    }
    for overrides, part in expected.items():
        run = continued(lab, retrofitted, *overrides.split())
        with pytest.raises(LabError, match="start from a run of the same model") as caught:
            lab.execute(run)
        assert part in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not run.metrics.exists()
        assert run.result is None
    model = build_model(retrofitted.config)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    problems = start.take(model, final_weights(retrofitted), connection_too=False)
    assert [line.split()[1] for line in problems] == ["connection.b", "connection.w"]
    assert_same(model.state_dict(), before)
    bare = tmp_path / plain.path.name
    shutil.copytree(plain.path, bare, ignore=shutil.ignore_patterns("*.pt"))
    with pytest.raises(
        LabError, match=r"start\.run=.*checkpoints/final\.pt: the weights are not there"
    ):
        lab.execute(continued(lab, RunDirectory.open(bare), "residual=plain"))
