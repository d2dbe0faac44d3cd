"""Vectors and a linear map of them."""

from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from residual_lab.config import Config, compose
from residual_lab.data import build_data_module, fingerprint
from residual_lab.data.linear_map import LinearMapDataModule, examples


def configuration(*overrides: str) -> Config:
    toy = ("model=low_rank_linear", "data=linear_map", "optim=sgd", "hardware=cpu")
    return compose([*toy, "budget.tokens=2400", "budget.batch_tokens=24", *overrides])


class Placed(LinearMapDataModule):
    """As one of several processes."""

    rank, world_size = 0, 1  # type: ignore[assignment]


def batches(module: Any, count: int) -> list[tuple[Tensor, Tensor]]:
    return list(islice(module.train_dataloader(), count))


def test_targets_are_the_identity_or_one_random_map() -> None:
    module = build_data_module(configuration("data.target=identity"))
    for inputs, targets in batches(module, 2):
        assert inputs.shape == (24, 100) and torch.equal(inputs, targets)
    x, y = (
        torch.cat(parts)
        for parts in zip(*batches(build_data_module(configuration()), 50), strict=True)
    )
    with_one = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    found = torch.linalg.lstsq(with_one, y.double()).solution
    torch.testing.assert_close(with_one @ found, y.double(), atol=1e-4, rtol=0)
    assert found.std().item() == pytest.approx(1, rel=0.05)  # N(0, 1), b too
    assert (x.mean().item(), x.std().item()) == pytest.approx((0, 1), abs=0.02)


def test_the_stream_depends_on_seed_and_place_alone() -> None:
    """Across the blocks that it is drawn in."""
    whole = examples(0, 5, 0, 400)
    assert torch.equal(examples(0, 5, 127, 130), whole[127:130])
    assert torch.equal(examples(0, 5, 128, 256), whole[128:256])
    assert len(whole.unique(dim=0)) == 400
    assert not torch.equal(examples(1, 5, 0, 400), whole)


def test_devices_accumulation_and_a_resume_share_one_stream() -> None:
    """Two processes with two micro-batches each read together what one reads."""
    straight = batches(build_data_module(configuration()), 4)
    parts = []
    for rank in (0, 1):
        module = Placed(configuration("hardware.accumulate=2"))
        module.rank, module.world_size = rank, 2  # type: ignore[misc, assignment]
        module.start_step = 3
        parts.append(batches(module, 2))
    dealt = [parts[rank][micro][0] for micro in (0, 1) for rank in (0, 1)]
    assert torch.equal(torch.cat(dealt), straight[3][0])


def test_the_sets_are_fixed_whatever_the_runs_seed_and_apart_from_its_stream() -> None:
    one, other = (build_data_module(configuration(f"seed={seed}")) for seed in (0, 1))
    for split in ("val_dataloader", "test_dataloader"):
        sets = [torch.cat([x for x, _ in getattr(m, split)()]) for m in (one, other)]
        assert len(sets[0]) == {"val_dataloader": 1000, "test_dataloader": 10_000}[split]
        assert torch.equal(*sets)
    assert not torch.equal(batches(one, 1)[0][0], batches(other, 1)[0][0])
    assert not torch.equal(batches(one, 1)[0][0], next(iter(one.val_dataloader()))[0][:24])
    assert fingerprint(one.config) == fingerprint(other.config)
    for change in ("data.target_seed=1", "data.target=identity", "data.test_examples=9"):
        assert fingerprint(configuration(change)) != fingerprint(one.config)


def test_a_blind_guess_is_worth_the_variance_of_the_targets() -> None:
    """E|x|²/d = 1; of A x + b it is d + 1 for entries of N(0, 1)."""
    assert build_data_module(configuration("data.target=identity")).guess_loss == pytest.approx(
        1, rel=0.02
    )
    assert build_data_module(configuration()).guess_loss == pytest.approx(101, rel=0.05)
