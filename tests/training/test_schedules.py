"""Schedules against closed forms, torch's schedulers and a published sum."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from residual_lab.config.schema import OptimConfig
from residual_lab.training.schedules import Schedule, build_schedule


def schedule(name: str, steps: int, **options: float) -> Schedule:
    return build_schedule(OptimConfig(name="x", lr=1.0, schedule=name, **options), steps)


@pytest.mark.parametrize("name", ["constant", "cosine", "inverse_sqrt", "wsd"])
def test_linear_warmup_then_peak(name: str) -> None:
    factor = schedule(name, 100, warmup_steps=10, initial_lr_factor=0.1, final_lr_factor=0.0)
    assert [factor(step) for step in (0, 5, 10)] == pytest.approx([0.1, 0.55, 1.0])


def test_no_warmup_starts_at_the_peak() -> None:
    for name in ("constant", "cosine", "inverse_sqrt", "wsd"):
        assert schedule(name, 100)(0) == 1.0


def test_constant_stays() -> None:
    assert schedule("constant", 100, warmup_steps=10)(99) == 1.0


def test_cosine_is_halfway_in_the_middle_and_ends_at_its_final_factor() -> None:
    factor = schedule("cosine", 110, warmup_steps=10, final_lr_factor=0.1)
    assert factor(60) == pytest.approx(0.55)
    assert factor(35) == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2)
    assert factor(110) == pytest.approx(0.1)


def test_cosine_agrees_with_torch() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.1)
    ours = schedule("cosine", 20, final_lr_factor=0.1)
    for step in range(20):
        assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()


def test_inverse_sqrt_sums_to_what_is_published() -> None:
    """DeepCrossAttention's 500,000 steps at 0.0016 sum to 69.2 (papers' notes on its figure 10)."""
    factor = schedule("inverse_sqrt", 500_000, warmup_steps=1000)
    assert factor(4000) == pytest.approx(0.5)
    assert 0.0016 * sum(map(factor, range(500_000))) == pytest.approx(69.2, abs=0.05)


def test_wsd_is_stable_then_linear() -> None:
    factor = schedule("wsd", 100, warmup_steps=10, decay_fraction=0.2, final_lr_factor=0.5)
    assert factor(10) == factor(50) == factor(80) == 1.0
    assert [factor(90), factor(100)] == pytest.approx([0.75, 0.5])


@pytest.mark.parametrize(("steps", "warmup"), [(40, 2), (40, 8), (7, 3), (40, 0)])
def test_one_cycle_is_that_of_denseformers_code(steps: int, warmup: int) -> None:
    """torch's OneCycleLR with the arguments of epfml/DenseFormer: lr/100, lr, lr/10."""
    ours = schedule(
        "one_cycle", steps, warmup_steps=warmup, initial_lr_factor=0.01, final_lr_factor=0.1
    )
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = OneCycleLR(
        optimizer,
        max_lr=1.0,
        total_steps=steps,
        pct_start=warmup / steps,
        anneal_strategy="cos",
        cycle_momentum=False,
        div_factor=1e2,
        final_div_factor=0.1,
    )
    for step in range(steps):
        assert ours(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12), step
        optimizer.step()
        if step < steps - 1:
            theirs.step()
    if warmup:
        assert [ours(0), ours(warmup - 1), ours(steps - 1)] == pytest.approx([0.01, 1.0, 0.1])
