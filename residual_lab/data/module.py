"""Batches for Lightning: the training stream from any step on, and whole evaluation sets."""

from collections.abc import Iterator

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from residual_lab.config.schema import Config
from residual_lab.data.corpus import Corpus, prepare
from residual_lab.data.order import evaluation_batches, micro_batch_size, sequences
from residual_lab.data.shards import Tokens


class TextDataModule(LightningDataModule):
    """Batches of token ids: int64, (sequences, sequence_length + 1).

    Inputs are ``batch[:, :-1]``, targets ``batch[:, 1:]``. For ``Trainer(use_distributed_sampler=
    False)``: each rank reads its own part (:mod:`residual_lab.data.order`). Set ``start_step`` to
    the checkpoint's optimizer step before fitting; nothing else is needed to resume. No loader
    draws from a global random generator.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.start_step = 0  # the optimizer step that training starts from
        self.corpus: Corpus | None = None

    def prepare_data(self) -> None:
        prepare(self.config)

    def setup(self, stage: str | None = None) -> None:
        self.corpus = self.corpus or prepare(self.config)

    def train_dataloader(self) -> DataLoader[Tensor]:
        """Endless; ``hardware.accumulate`` micro-batches to an optimizer step."""
        return _loader(TrainingStream(self))

    def val_dataloader(self) -> DataLoader[Tensor]:
        return self._evaluation(self._corpus.validation)

    def test_dataloader(self) -> DataLoader[Tensor]:
        return self._evaluation(self._corpus.test)

    @property
    def rank(self) -> int:
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world_size(self) -> int:
        return self.trainer.world_size if self.trainer else 1

    @property
    def _corpus(self) -> Corpus:
        self.setup()
        assert self.corpus is not None
        return self.corpus

    def _evaluation(self, tokens: Tokens) -> DataLoader[Tensor]:
        length = self.config.data.sequence_length
        per_device = self.config.evaluation.batch_sequences
        batches = evaluation_batches(tokens.windows(length), per_device, self.rank, self.world_size)
        return _loader(EvaluationSet(tokens, length, batches))


class TrainingStream(IterableDataset[Tensor]):
    """This rank's micro-batches from the module's ``start_step`` on, without end."""

    def __init__(self, module: TextDataModule) -> None:
        self.module = module
        config = module.config
        self.micro = micro_batch_size(
            config.batch_sequences, config.hardware.accumulate, module.world_size
        )

    def __iter__(self) -> Iterator[Tensor]:
        step = self.module.start_step
        while True:
            yield from self._step(0 if self.module.config.debug.overfit else step)
            step += 1

    def _step(self, step: int) -> Iterator[Tensor]:
        config, tokens = self.module.config, self.module._corpus.train
        length = config.data.sequence_length
        for number in range(config.hardware.accumulate):
            part = number * self.module.world_size + self.module.rank
            start = step * config.batch_sequences + part * self.micro
            stop = start + self.micro
            chosen = sequences(config.seed, tokens.windows(length), start, stop)
            yield _batch(tokens, chosen, length)


class EvaluationSet(Dataset[Tensor]):
    """A fixed list of batches."""

    def __init__(self, tokens: Tokens, length: int, batches: list[np.ndarray]) -> None:
        self.tokens, self.length, self.batches = tokens, length, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Tensor:
        return _batch(self.tokens, self.batches[index], self.length)


def _batch(tokens: Tokens, chosen: np.ndarray, length: int) -> Tensor:
    return torch.from_numpy(np.stack([tokens.window(index, length) for index in chosen]))


def _loader(dataset: Dataset[Tensor]) -> DataLoader[Tensor]:
    """One whole batch an item, read in this process: a batch takes microseconds to copy.

    A loader draws a seed whenever it starts; a generator of its own keeps the global one untouched.
    """
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=0,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
    )
