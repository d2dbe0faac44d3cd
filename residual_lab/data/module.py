"""Batches for Lightning: the training stream from any step on, and whole evaluation sets."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from residual_lab.config.data import TextDataConfig
from residual_lab.config.models import DecoderConfig
from residual_lab.config.schema import Config
from residual_lab.data.batches import Batch
from residual_lab.data.corpus import Corpus, prepare
from residual_lab.data.order import evaluation_batches, micro_batch_size, sequences
from residual_lab.data.shards import Tokens
from residual_lab.errors import DataError


class DataModule(LightningDataModule):
    """What data of every kind have in common; a subclass says what is at which place.

    For ``Trainer(use_distributed_sampler=False)``: each rank reads its own part
    (:mod:`residual_lab.data.order`). Set ``start_step`` to the checkpoint's optimizer step before
    fitting; nothing else is needed to resume. No loader draws from a global random generator.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.start_step = 0  # the optimizer step that training starts from
        self.first_sequence = 0  # place in the stream of step 0's first sequence
        self.readers = 0  # processes that make batches; 0: this one

    @property
    def guess_loss(self) -> float:
        """The loss of a model that does not look at its input."""
        raise NotImplementedError

    def training_batch(self, start: int, stop: int) -> Batch:
        """What is at the places ``start`` to ``stop`` of the endless training stream."""
        raise NotImplementedError

    def train_dataloader(self) -> DataLoader[Batch]:
        """Endless; ``hardware.accumulate`` micro-batches to an optimizer step."""
        return _loader(TrainingStream(self), self.readers)

    def evaluation(self, take: Callable[[np.ndarray], Batch], size: int) -> DataLoader[Batch]:
        """A loader of this rank's part of a set of ``size``; ``take`` gives chosen places of it."""
        per_device = self.config.evaluation.batch_sequences
        batches = evaluation_batches(size, per_device, self.rank, self.world_size)
        return _loader(EvaluationSet(take, batches), self.readers)

    @property
    def rank(self) -> int:
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world_size(self) -> int:
        return self.trainer.world_size if self.trainer else 1

    # A resumed run does not need the run that it once started from.

    def state_dict(self) -> dict[str, Any]:
        return {"first_sequence": self.first_sequence}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.first_sequence = state_dict["first_sequence"]

    def __getstate__(self) -> dict[str, Any]:
        """What a process that reads is given, where it is not forked: no trainer."""
        return {**self.__dict__, "trainer": None}


class TextDataModule(DataModule):
    """Batches of token ids: int64, (sequences, sequence_length + 1).

    Inputs are ``batch[:, :-1]``, targets ``batch[:, 1:]``.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.data, TextDataConfig)
        assert isinstance(config.model, DecoderConfig)
        self.length, self.vocabulary = config.data.sequence_length, config.model.vocabulary
        self.corpus: Corpus | None = None

    def prepare_data(self) -> None:
        prepare(self.config)

    def setup(self, stage: str | None = None) -> None:
        self.corpus = self.corpus or prepare(self.config)

    @property
    def guess_loss(self) -> float:
        """That of taking all tokens for equally likely."""
        return math.log(self.vocabulary)

    def training_batch(self, start: int, stop: int) -> Tensor:
        tokens = self._corpus.train
        chosen = sequences(self.config.seed, tokens.windows(self.length), start, stop)
        return _batch(tokens, chosen, self.length)

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation(self._corpus.validation)

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation(self._corpus.test)

    @property
    def _corpus(self) -> Corpus:
        self.setup()
        assert self.corpus is not None
        return self.corpus

    def _evaluation(self, tokens: Tokens) -> DataLoader[Batch]:
        def take(chosen: np.ndarray) -> Tensor:
            return _batch(tokens, chosen, self.length)

        return self.evaluation(take, tokens.windows(self.length))


class TrainingStream(IterableDataset[Batch | DataError]):
    """This rank's micro-batches from the module's ``start_step`` on, without end.

    A process that reads makes every so many of them; the loader asks one process after the other.
    """

    def __init__(self, module: DataModule) -> None:
        self.module = module
        self.rank, self.world_size = module.rank, module.world_size
        config = module.config
        self.micro = micro_batch_size(
            config.batch_sequences, config.hardware.accumulate, self.world_size
        )

    def __iter__(self) -> Iterator[Batch | DataError]:
        reader = get_worker_info()
        first, every = (reader.id, reader.num_workers) if reader else (0, 1)
        for start in itertools.islice(self._starts(), first, None, every):
            yield _or_error(self.module.training_batch, start, start + self.micro)

    def _starts(self) -> Iterator[int]:
        """The place in the stream of each micro-batch's first sequence."""
        module, config = self.module, self.module.config
        for step in itertools.count(module.start_step):
            first = 0 if config.debug.overfit else step
            first = module.first_sequence + first * config.batch_sequences
            for number in range(config.hardware.accumulate):
                part = number * self.world_size + self.rank
                yield first + part * self.micro


class EvaluationSet(Dataset[Batch | DataError]):
    """A fixed list of batches."""

    def __init__(self, take: Callable[[np.ndarray], Batch], batches: list[np.ndarray]) -> None:
        self.take, self.batches = take, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch | DataError:
        return _or_error(self.take, self.batches[index])


class Loader(DataLoader[Any]):
    """Raises the DataError that a dataset gives in the place of a batch.

    Torch's own way to raise what went wrong in a process that reads adds a page of traceback.
    """

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        for batch in super().__iter__():
            if isinstance(batch, DataError):
                raise batch
            yield batch


def _or_error(read: Callable[..., Batch], *arguments: Any) -> Batch | DataError:
    try:
        return read(*arguments)
    except DataError as error:
        return error


def _batch(tokens: Tokens, chosen: np.ndarray, length: int) -> Tensor:
    return torch.from_numpy(np.stack([tokens.window(index, length) for index in chosen]))


def _loader(dataset: Dataset[Batch | DataError], readers: int) -> Loader:
    """One whole batch an item. Text is read in this process: it takes microseconds to copy.

    A loader draws a seed whenever it starts; a generator of its own keeps the global one untouched.
    """
    return Loader(
        dataset,
        batch_size=None,
        num_workers=readers,
        pin_memory=torch.cuda.is_available(),
        generator=torch.Generator(),
    )
