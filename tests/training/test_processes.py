"""Two real processes: Lightning starts the second; DDP and FSDP2 over gloo."""

import json

import pytest

from residual_lab.config import conf_directory
from residual_lab.run_directory import RunDirectory, read_metrics
from residual_lab.training import checkpoints

from .conftest import Lab, assert_same_weights, final_weights, start_python

SHARED = ["hardware.accumulate=2", "evaluation.batch_sequences=5"]


def losses(run: RunDirectory, key: str) -> list[float]:
    return [row[key] for row in read_metrics(run.metrics) if key in row]


@pytest.fixture(scope="module")
def killed(lab: Lab) -> RunDirectory:
    """The run ``ddp``, whose first process was killed at step 5: both are gone."""
    run = lab.run("hardware=cpu_ddp", *SHARED)
    done = start_python("tests.training.worker", f"{run.path}@5")
    assert done.returncode == -9, done.stderr
    assert run.status == "unfinished", run.log.read_text()
    assert [path.name for path in run.checkpoints.iterdir()] == ["step-00000003.ckpt"]
    return run


@pytest.fixture(scope="module")
def alone(lab: Lab) -> RunDirectory:
    """One process, the same global batch."""
    return lab.trained(*SHARED, "model.dropout=0")


@pytest.fixture(scope="module")
def runs(lab: Lab, killed: RunDirectory, alone: RunDirectory) -> dict[str, RunDirectory]:
    """Several runs, one after the other in the same two processes; the last is killed."""
    no_dropout = [*SHARED, "model.dropout=0"]
    made = {
        "resumed": killed,
        "ddp": lab.run("hardware=cpu_ddp", *SHARED),
        "ddp without dropout": lab.run(
            "hardware=cpu_ddp", *no_dropout, "logger=wandb", "logger.mode=offline"
        ),
        "fsdp": lab.run("hardware=cpu_fsdp", *no_dropout),
        "branches": lab.run(
            "hardware=cpu_fsdp",
            *SHARED,
            "residual=laurel_rw+lr+pa",
            "residual.granularity=branch",
            "hardware.checkpoint_layers=true",
            "optim.connection_start_step=4",
        ),
        "fsdp started": lab.run("hardware=cpu_fsdp", *no_dropout, f"start.run={alone.path}"),
        "fsdp killed": lab.run("hardware=cpu_fsdp", *no_dropout),
    }
    paths = [str(run.path) for run in made.values()]
    done = start_python("tests.training.worker", *paths[:-1], f"{paths[-1]}@5")
    assert done.returncode == -9, done.stderr
    assert [run.status for run in made.values()] == ["finished"] * 6 + ["unfinished"]
    return made


@pytest.mark.parametrize("name", ["ddp without dropout", "fsdp"])
def test_two_processes_compute_what_one_does(
    name: str, runs: dict[str, RunDirectory], alone: RunDirectory
) -> None:
    """Same global batches, same losses to rounding; validation weighs tokens, not ranks."""
    for key in ("train_loss", "val_loss", "gradient_norm"):
        assert losses(runs[name], key) == pytest.approx(losses(alone, key), rel=2e-5)
    one, two = alone.result, runs[name].result
    assert one is not None
    assert two is not None
    assert two["test_loss"] == pytest.approx(one["test_loss"], rel=2e-5)
    for key in ("params", "params_connection", "tokens", "steps", "flops_per_token"):
        assert two[key] == one[key]


def test_sharded_weights_start_from_those_of_another_run(
    runs: dict[str, RunDirectory], alone: RunDirectory
) -> None:
    """The first validation, before any step, is the last of the run that one process made."""
    started = losses(runs["fsdp started"], "val_loss")
    assert len(started) == 3
    assert started[0] == pytest.approx(losses(alone, "val_loss")[-1], rel=2e-5)
    assert started[-1] < started[0]
    assert (runs["fsdp started"].result or {})["first_sequence"] == 8 * 8


def test_sharded_weights_are_saved_whole(
    runs: dict[str, RunDirectory], alone: RunDirectory
) -> None:
    """F27's cousin: the keys and shapes of a model that was never wrapped."""
    expected = {name: weight.shape for name, weight in final_weights(alone).items()}
    for name in ("ddp without dropout", "fsdp"):
        assert {n: w.shape for n, w in final_weights(runs[name]).items()} == expected


def test_branches_are_sharded_and_recomputed(lab: Lab, runs: dict[str, RunDirectory]) -> None:
    """F34: FSDP2, activation checkpointing, two units a layer, a connection that starts late."""
    result = runs["branches"].result
    assert result is not None
    assert result["status"] == "finished"
    assert losses(runs["branches"], "val_loss")[-1] < losses(runs["branches"], "train_loss")[0]


def test_killed_and_resumed_bit_for_bit(runs: dict[str, RunDirectory]) -> None:
    """F28 in two processes, with accumulation, and dropout drawn by each rank."""
    assert_same_weights(runs["resumed"], runs["ddp"])
    for key in ("train_loss", "val_loss"):
        assert losses(runs["resumed"], key) == losses(runs["ddp"], key)


def test_one_run_directory_one_log(runs: dict[str, RunDirectory]) -> None:
    """F1, F2: two processes leave one directory; lines of the second are marked as such."""
    run = runs["resumed"]
    names = {path.name for path in run.path.iterdir()} - {".lock", "modules.txt"}
    files = {"config.yaml", "data-fingerprint", "inspection.json", "log.txt", "metrics.jsonl"}
    assert names == {"checkpoints", "result.json", *files}
    assert [path.name for path in run.path.parent.iterdir()] == [run.path.name]
    assert "[process 1]" in run.log.read_text()


def test_two_processes_are_one_wandb_run(runs: dict[str, RunDirectory]) -> None:
    """F30: the second process logs nothing."""
    folder = runs["ddp without dropout"].path / "wandb"
    assert len(list(folder.glob("offline-run-*"))) == 1


def test_sharded_checkpoint_goes_on_in_one_process(
    runs: dict[str, RunDirectory], alone: RunDirectory
) -> None:
    """``--devices 1`` after two: the same losses to rounding, and the times of the new device."""
    run = runs["fsdp killed"]
    checkpoint = checkpoints.newest(run.checkpoints)
    assert checkpoint is not None
    assert checkpoint.name == "step-00000003.ckpt"
    assert len(list(checkpoint.glob("*.distcp"))) == 2
    done = start_python("residual_lab.run", str(run.path), "--devices", "1")
    assert done.returncode == 0, done.stderr
    for key in ("train_loss", "val_loss"):
        assert losses(run, key) == pytest.approx(losses(alone, key), rel=2e-5)
    result = json.loads((run.path / "result.json").read_text())
    assert result["device"].startswith("1 ×")
    assert (run.config.hardware.precision, result["precision"]) == ("auto", "32-true")
    assert result["step_time_s"]["n"] <= 2  # the windows up to step 8 after one of warm-up


@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["cpu_ddp", "cpu_fsdp"])
def test_every_connection_trains_in_two_processes(hardware: str, lab: Lab) -> None:
    """F33: no parameter is unused, so DDP waits for none; and FSDP2 can shard each."""
    shape = ["model.layers=6", "model.width=24", "budget.steps=3", "evaluation.every_steps=3"]
    names = sorted(path.stem for path in conf_directory().glob("residual/*.yaml"))
    made = {name: lab.run(f"residual={name}", f"hardware={hardware}", *shape) for name in names}
    done = start_python(
        "tests.training.worker", *(str(run.path) for run in made.values()), timeout=1800
    )
    unfinished = [name for name, run in made.items() if run.status != "finished"]
    assert not unfinished, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_the_first_failure_is_the_one_reported(lab: Lab, rank: str) -> None:
    """Whichever process fails, the other one's lost connection is not what result.json names."""
    run = lab.run("hardware=cpu_ddp")
    done = start_python("tests.training.failing", str(run.path), rank)
    assert done.returncode not in (0, 2, 3)
    assert run.result is not None
    assert run.result["error"] == "ValueError: no such luck"
    assert "in validation_step" in run.log.read_text()
