"""N steps straight equal k steps, a kill, and N - k steps, in one process."""

import json
import math
from pathlib import Path

import pytest
import torch

from residual_lab.errors import DataError, LabError
from residual_lab.run_directory import RunDirectory, read_metrics
from residual_lab.training import checkpoints, execution
from residual_lab.training.recorder import Recorder

from .conftest import Lab, assert_same_weights, start_python

TIMES = ("seconds", "tokens_per_s")


def without_times(run: RunDirectory) -> list[dict[str, float]]:
    rows = read_metrics(run.metrics)
    return [{key: row[key] for key in row if key not in TIMES} for row in rows]


@pytest.fixture(scope="module")
def killed(lab: Lab) -> RunDirectory:
    """The run ``straight``, killed at step 5: checkpoint after 3, validation after 4."""
    run = lab.run("hardware.accumulate=2")
    done = start_python("tests.training.worker", f"{run.path}@5")
    assert done.returncode == -9, done.stderr
    return run


@pytest.fixture(scope="module")
def resumed(lab: Lab, killed: RunDirectory) -> RunDirectory:
    assert killed.status == "unfinished"
    assert [path.name for path in killed.checkpoints.iterdir()] == ["step-00000003.ckpt"]
    assert lab.execute(killed) == 0
    return killed


def test_nothing_of_hydra_exists_in_a_run(killed: RunDirectory) -> None:
    """F3, F25, F32: Hydra only composes; a run knows plain, typed values."""
    modules = (killed.path / "modules.txt").read_text().split()
    assert "lightning" in modules
    assert not {name for name in modules if name.split(".")[0] in ("hydra", "omegaconf")}


def test_weights_are_the_same_bit_for_bit(straight: RunDirectory, resumed: RunDirectory) -> None:
    """F28: no sample is repeated or skipped; dropout goes on where it was."""
    assert_same_weights(resumed, straight)


def test_metrics_are_one_curve(straight: RunDirectory, resumed: RunDirectory) -> None:
    """F26: rows from before and after the kill, none lost, each as in the straight run."""
    assert without_times(resumed) == without_times(straight)


def test_results_are_the_same(straight: RunDirectory, resumed: RunDirectory) -> None:
    one, other = straight.result, resumed.result
    assert one is not None
    assert other is not None
    for key in ("train_loss", "val_loss", "test_loss", "tokens", "steps", "data_fingerprint"):
        assert one[key] == other[key]


def test_a_torn_last_row_is_no_obstacle(lab: Lab, straight: RunDirectory) -> None:
    """A kill in the middle of a write leaves half a row; the resumed run appends to it."""
    run = stopped_at(lab, 5)
    with run.metrics.open("a", encoding="utf-8") as file:
        file.write('{"step": 5, "tok')
    lab.execute(run)
    assert without_times(run) == without_times(straight)


def stopped_at(lab: Lab, step: int, *overrides: str, place: str = "after step") -> RunDirectory:
    """A run that fell over at ``step``, after its training step or in the middle of validation."""
    run = lab.run("hardware.accumulate=2", *overrides)
    hook = "on_train_batch_end" if place == "after step" else "on_validation_end"
    original = getattr(Recorder, hook)

    def fall_over(self: Recorder, *arguments: object) -> None:
        if place == "in validation" and self.step == step:
            raise KeyError("power cut")
        original(self, *arguments)
        if place == "after step" and self.step == step:
            raise KeyError("power cut")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, hook, fall_over)
        with pytest.raises(KeyError):
            lab.execute(run)
    return run


def test_a_validation_that_was_cut_off_is_made_up_for(lab: Lab) -> None:
    """Killed between the checkpoint and the validation after the same step."""
    every = "run.checkpoint_every_steps=4"
    straight = lab.trained("hardware.accumulate=2", every)
    run = stopped_at(lab, 4, every, place="in validation")
    lab.execute(run)
    assert without_times(run) == without_times(straight)
    assert_same_weights(run, straight)


def test_killed_at_the_very_end(lab: Lab, straight: RunDirectory) -> None:
    """Trained, checkpoint written, killed in the last validation: only evaluation is left."""
    run = stopped_at(lab, 8, place="in validation")
    lab.execute(run)
    assert without_times(run) == without_times(straight)
    assert run.result is not None
    assert run.result["seconds"] > 0
    assert run.result["peak_memory_bytes"]["value"] > 0


def test_a_checkpoint_is_plain_data(lab: Lab) -> None:
    """F25, F31: ``weights_only=True`` loads it; it holds no configuration to clash over."""
    run = stopped_at(lab, 5)
    checkpoint = checkpoints.newest(run.checkpoints)
    assert checkpoint is not None
    loaded = torch.load(checkpoint, weights_only=True)
    assert loaded["global_step"] == checkpoints.step_of(checkpoint) == 3
    assert not [key for key in loaded if "hyper_parameters" in key or "hparams" in key]


def test_only_the_final_weights_stay(straight: RunDirectory) -> None:
    """They load into a model that was never wrapped, compiled or sharded."""
    from residual_lab import build_model

    assert {path.name for path in straight.checkpoints.iterdir()} == {"final.pt", "tokenizer.json"}
    weights = torch.load(straight.checkpoints / "final.pt", weights_only=True)
    build_model(straight.config).load_state_dict(weights, strict=True)


def test_what_a_killed_process_left_half_written_is_removed(lab: Lab) -> None:
    run = lab.run()
    run.checkpoints.mkdir()
    (run.checkpoints / ".step-00000005.ckpt.abc").write_bytes(b"half")
    lab.execute(run)
    assert {path.name for path in run.checkpoints.iterdir()} == {"final.pt", "tokenizer.json"}


def test_a_run_is_not_resumed_on_other_data(
    lab: Lab, straight: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither trained on nor touched; on the old data it goes on as if nothing had been."""
    run = stopped_at(lab, 5)
    monkeypatch.setattr(execution, "fingerprint", lambda config: "f00d")
    before = run.metrics.read_bytes()
    with pytest.raises(DataError, match="the data has changed since the run began") as caught:
        lab.execute(run)
    assert "\n" not in str(caught.value)
    assert run.metrics.read_bytes() == before
    monkeypatch.undo()
    assert lab.execute(run) == 0
    assert_same_weights(run, straight)


def test_metadata_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """torch unpickles a sharded checkpoint's metadata without a check of its own."""
    checkpoint = tmp_path / "step-00000003.ckpt"
    checkpoint.mkdir()
    (checkpoint / ".metadata").write_bytes(b"cos\nsystem\n(S'touch /tmp/x'\ntR.")
    with pytest.raises(LabError, match=r"(os|posix)\.system"):
        checkpoints.check(checkpoint)


@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_damaged_checkpoint_is_one_line(part: float, lab: Lab) -> None:
    run = lab.run(f"seed={int(100 * part) + 50}")
    lab.cut_off(run, 5)
    checkpoint = checkpoints.newest(run.checkpoints)
    assert checkpoint is not None
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: int(part * len(whole))] + b"junk")
    with pytest.raises(LabError, match="remove it and the run starts anew") as caught:
        lab.execute(run)
    assert "\n" not in str(caught.value)
    checkpoint.write_bytes(whole)
    assert lab.execute(run) == 0


def test_the_result_holds_every_key_and_is_strict_json(straight: RunDirectory) -> None:
    text = (straight.path / "result.json").read_text()
    result = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert result.keys() >= {
        *("status", "name", "config_hash", "seed", "params", "params_connection", "tokens"),
        *("steps", "train_loss", "val_loss", "test_loss", "perplexity", "step_time_s"),
        *("tokens_per_s", "peak_memory_bytes", "flops_per_token", "mfu", "device", "versions"),
        *("git", "started", "seconds", "data_fingerprint"),
    }
    assert result["steps"] == 8
    assert result["tokens"] == 8 * 128
    assert result["perplexity"] == pytest.approx(math.exp(result["test_loss"]))
    # 3 scalars a layer of RW and LR: α, β, and the pair of rank 2 and width 16 with its norm.
    assert result["params_connection"] > 0
    assert result["mfu"] is None
