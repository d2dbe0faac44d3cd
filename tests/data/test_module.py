"""Batches through Lightning: every device's part, resumed anywhere, validation without a trace."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from residual_lab.config import Config
from residual_lab.data import TextDataModule, prepare

from .test_order import slow_stream

Compose = Callable[..., Config]
STEPS = 9  # over three epochs of the small corpus
BATCH = 24  # sequences


def module_for(config: Config, rank: int = 0, world: int = 1) -> TextDataModule:
    module = TextDataModule(config)
    module.trainer = SimpleNamespace(global_rank=rank, world_size=world)  # type: ignore[assignment]
    return module


def take(module: TextDataModule, batches: int) -> list[Tensor]:
    stream = iter(module.train_dataloader())
    return [next(stream) for _ in range(batches)]


@pytest.fixture
def small(composed: Compose, corpus_folder: Any) -> Callable[..., Config]:
    """A training split of 60 sequences: an epoch is two steps and a half."""

    def compose_small(*overrides: str) -> Config:
        return composed(
            f"data.path={corpus_folder}",
            "data.train_tokens=960",
            "budget.batch_tokens=384",
            "budget.tokens=3840",
            *overrides,
        )

    return compose_small


def test_batches_are_the_stream_of_sequences(small: Callable[..., Config]) -> None:
    config = small("seed=3")
    tokens = prepare(config).train
    ids = tokens.read(0, len(tokens))
    windows = (len(ids) - 1) // 16
    order = slow_stream(3, windows, BATCH * STEPS)
    assert windows == 60
    for step, batch in enumerate(take(TextDataModule(config), STEPS)):
        assert batch.dtype == torch.int64
        expected = [ids[w * 16 : w * 16 + 17] for w in order[BATCH * step : BATCH * step + BATCH]]
        assert np.array_equal(batch.numpy(), np.stack(expected))


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_any_number_of_devices_sees_the_same(
    small: Callable[..., Config], accumulate: int, world: int
) -> None:
    alone = take(TextDataModule(small()), 7)
    config = small(f"hardware.accumulate={accumulate}")
    parts = 7 * accumulate
    ranks = [take(module_for(config, rank, world), parts) for rank in range(world)]
    for step, expected in enumerate(alone):
        micro = range(step * accumulate, step * accumulate + accumulate)
        assert torch.equal(torch.cat([ranks[r][m] for m in micro for r in range(world)]), expected)


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_resumes_at_any_step(small: Callable[..., Config], step: int) -> None:
    config = small("hardware.accumulate=2")
    straight = take(TextDataModule(config), 2 * STEPS)
    resumed = TextDataModule(config)
    resumed.start_step = step
    for expected, batch in zip(
        straight[2 * step :], take(resumed, 2 * (STEPS - step)), strict=True
    ):
        assert torch.equal(batch, expected)


def test_overfit_repeats_the_first_batch(small: Callable[..., Config]) -> None:
    config = small("hardware.accumulate=2")
    debug = config.debug.model_copy(update={"overfit": True})
    batches = take(TextDataModule(config.model_copy(update={"debug": debug})), 8)
    first = take(TextDataModule(config), 2)
    assert all(torch.equal(batch, first[i % 2]) for i, batch in enumerate(batches))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("split", ["val", "test"])
def test_evaluation_is_whole(small: Callable[..., Config], world: int, split: str) -> None:
    config = small("evaluation.batch_sequences=5")
    corpus = prepare(config)
    tokens = corpus.validation if split == "val" else corpus.test
    ids = tokens.read(0, len(tokens))
    expected = sorted(tuple(ids[w : w + 17]) for w in range(0, (len(ids) - 1) // 16 * 16, 16))
    modules = [module_for(config, rank, world) for rank in range(world)]
    loaders = [getattr(module, f"{split}_dataloader")() for module in modules]
    rows = [tuple(row) for loader in loaders for batch in loader for row in batch.tolist()]
    assert sorted(rows) == expected
    assert len({len(loader) for loader in loaders}) == 1


class Recorder(LightningModule):
    """Keeps the batches that it is given and trains nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[Tensor] = []
        self.validated: list[Tensor] = []

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        self.trained.append(batch)
        return self.weight * 1.0

    def validation_step(self, batch: Tensor, index: int) -> None:
        self.validated.append(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def trainer(**options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **options,
    )


def test_in_a_trainer(small: Callable[..., Config]) -> None:
    config = small("hardware.accumulate=2")
    recorder = Recorder()
    trainer(max_steps=5, accumulate_grad_batches=2, val_check_interval=4).fit(
        recorder, TextDataModule(config)
    )
    expected = take(TextDataModule(config), 10)
    assert len(recorder.trained) == 10
    assert all(map(torch.equal, recorder.trained, expected))
    assert recorder.validated


def test_validation_draws_from_no_generator(small: Callable[..., Config]) -> None:
    config = small()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    recorder = Recorder()
    trainer().validate(recorder, TextDataModule(config), verbose=False)
    assert recorder.validated
    assert torch.equal(torch.get_rng_state(), before)
    take(TextDataModule(config), 3)
    assert torch.equal(torch.get_rng_state(), before)
