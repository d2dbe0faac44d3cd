"""What a run trains on, how often it validates, and what changes nothing."""

import math
from itertools import pairwise
from statistics import median

import pytest
import torch

from residual_lab import build_model
from residual_lab.data import TextDataModule
from residual_lab.run_directory import RunDirectory, read_metrics

from .conftest import Lab, assert_same_weights, final_weights


def steps_of(run: RunDirectory, key: str) -> list[int]:
    return [row["step"] for row in read_metrics(run.metrics) if key in row]


def losses_of(run: RunDirectory, key: str) -> list[float]:
    return [row[key] for row in read_metrics(run.metrics) if key in row]


def test_everything_counts_optimizer_steps(lab: Lab) -> None:
    """F21: with four micro-batches to a step, intervals and tokens are as with one."""
    options = ["hardware.accumulate=4", "budget.steps=10", "evaluation.every_steps=3"]
    run = lab.trained(*options)
    assert steps_of(run, "val_loss") == [3, 6, 9, 10]
    # Windows of two steps, and one that ends at each checkpoint (3, 6, 9) as well.
    assert steps_of(run, "train_loss") == [2, 3, 4, 6, 8, 9, 10]
    assert all(row["tokens"] == row["step"] * 128 for row in read_metrics(run.metrics))
    assert run.result is not None
    assert run.result["tokens"] == 10 * 128


def test_tokens_per_second_of_a_window_are_its_tokens_over_its_seconds(lab: Lab) -> None:
    """F22: whole steps, not micro-batches; the windows are of one step and of two."""
    options = ["hardware.accumulate=4", "budget.steps=10", "evaluation.every_steps=3"]
    rows = [r for r in read_metrics(lab.trained(*options).metrics) if "train_loss" in r]
    timed = [pair for pair in pairwise(rows) if pair[1]["tokens_per_s"] is not None]
    assert {now["step"] - before["step"] for before, now in timed} == {1, 2}
    ratios = [
        now["tokens_per_s"]
        * (now["seconds"] - before["seconds"])
        / (now["tokens"] - before["tokens"])
        for before, now in timed
    ]
    # The clock also runs while a row is written, between two windows.
    assert min(ratios) > 0.999
    assert median(ratios) < 1.5


def test_accumulation_changes_no_loss(lab: Lab) -> None:
    one = lab.trained("model.dropout=0", "hardware.accumulate=1")
    four = lab.trained("model.dropout=0", "hardware.accumulate=4")
    for key in ("train_loss", "val_loss", "gradient_norm"):
        assert losses_of(four, key) == pytest.approx(losses_of(one, key), rel=1e-5)


def test_losses_are_those_of_a_plain_loop(lab: Lab) -> None:
    """Against ten lines of torch: the same batches, AdamW, schedule, and whole validation set."""
    run = lab.trained("model.dropout=0", "optim.clip_norm=null", "measure.window_steps=1")
    config = run.config
    model, data = build_model(config), TextDataModule(config)
    groups = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    matrices = [
        p for name, p in model.named_parameters() if p.ndim > 1 and "connection" not in name
    ]
    rest += [p for p in groups if not any(p is q for q in matrices)]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
    )
    expected = []
    for step, batch in zip(range(8), data.train_dataloader(), strict=False):
        progress = (step - 2) / 6
        factor = step / 2 if step < 2 else 0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2
        for group in optimizer.param_groups:
            group["lr"] = config.optim.lr * factor
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses_of(run, "train_loss") == pytest.approx(expected, rel=1e-5)
    total, tokens = 0.0, 0
    with torch.no_grad():
        for batch in data.val_dataloader():
            logits = model.eval()(batch[:, :-1]).flatten(0, 1)
            targets = batch[:, 1:].flatten()
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            tokens += targets.numel()
    assert losses_of(run, "val_loss")[-1] == pytest.approx(total / tokens, rel=1e-5)


def test_how_often_one_validates_changes_no_weight(lab: Lab, straight: RunDirectory) -> None:
    """F16: validation draws from no random stream that training uses, even with dropout."""
    assert_same_weights(lab.trained("hardware.accumulate=2", "evaluation.every_steps=1"), straight)


def test_the_size_of_validation_batches_changes_no_loss(lab: Lab, straight: RunDirectory) -> None:
    """Whole sets, weighted by token: the last batch is smaller and counts less."""
    run = lab.trained("hardware.accumulate=2", "evaluation.batch_sequences=7")
    assert losses_of(run, "val_loss") == pytest.approx(losses_of(straight, "val_loss"), rel=1e-6)


def test_seed_0_is_a_seed(lab: Lab, straight: RunDirectory) -> None:
    """F15: 0 is no "unset": twice the same. F24: another seed starts elsewhere, from step 0."""
    assert straight.config.seed == 0
    assert_same_weights(lab.trained("hardware.accumulate=2"), straight)
    other = lab.trained("hardware.accumulate=2", "seed=1")
    assert other.path.name != straight.path.name
    assert steps_of(other, "val_loss") == [4, 8]
    assert losses_of(other, "train_loss")[0] != losses_of(straight, "train_loss")[0]


def test_deterministic_does_not_leak(lab: Lab) -> None:
    """F18: a run that does not ask for it does not get it from an earlier one."""
    lab.trained("hardware.deterministic=true", "budget.steps=1")
    assert torch.are_deterministic_algorithms_enabled()
    lab.trained("budget.steps=1")
    assert not torch.are_deterministic_algorithms_enabled()


def test_overfit_is_one_batch_again_and_again(lab: Lab) -> None:
    """A loss below what the text's words allow any model that has not learnt them by heart."""
    options = ["debug=overfit", "budget.steps=60", "budget.batch_tokens=32", "optim.lr=0.02"]
    run = lab.trained(*options, "model.dropout=0", "evaluation.every_steps=60", "model.width=32")
    train, validation = losses_of(run, "train_loss")[-1], losses_of(run, "val_loss")[-1]
    assert train < 0.2
    assert validation > 1.0


def test_16_bit_precision_rounds_no_loss(lab: Lab) -> None:
    """A bfloat16 loss near 5 would be a multiple of 1/32; its means would show that."""
    full, mixed = (
        lab.trained(f"hardware.precision={precision}", "model.dropout=0", "budget.steps=2")
        for precision in ("32-true", "bf16-mixed")
    )
    assert losses_of(mixed, "val_loss") == pytest.approx(losses_of(full, "val_loss"), rel=2e-3)
    assert final_weights(mixed)["embedding.weight"].dtype == torch.float32


def test_checkpointed_layers_change_nothing(lab: Lab, straight: RunDirectory) -> None:
    """F34: recomputed activations, dropout included, give the same weights bit for bit."""
    run = lab.trained("hardware.accumulate=2", "hardware.checkpoint_layers=true")
    assert_same_weights(run, straight)
