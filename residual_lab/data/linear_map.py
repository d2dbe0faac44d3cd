"""Vectors and what a linear map makes of them: the data of DeepCrossAttention's figure 1.

Shapes: N examples, D width.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from residual_lab.config.data import LinearMapConfig
from residual_lab.config.schema import Config
from residual_lab.data.batches import Batch
from residual_lab.data.module import DataModule
from residual_lab.seeds import stream_seed

_BLOCK = 128  # examples of the training stream that are drawn together


@dataclass(frozen=True)
class LinearMap:
    """The target y = x Aᵀ + b, or y = x, and two fixed sets of inputs from N(0, I).

    All of it follows from ``data.target_seed``, whatever the seed of a run.
    """

    matrix: Tensor | None  # A, (D, D); None for the identity
    bias: Tensor  # b, (D)
    validation: Tensor  # (N, D)
    test: Tensor

    @classmethod
    def of(cls, data: LinearMapConfig) -> "LinearMap":
        """Draw the entries of A and b, where the target is random, from N(0, 1)."""
        generator = torch.Generator().manual_seed(data.target_seed)
        width = data.width
        test, validation = (
            torch.randn(size, width, generator=generator)
            for size in (data.test_examples, data.validation_examples)
        )
        if data.target == "identity":
            return cls(None, torch.zeros(width), validation, test)
        matrix = torch.randn(width, width, generator=generator)
        return cls(matrix, torch.randn(width, generator=generator), validation, test)

    @property
    def fingerprint(self) -> str:
        """A hash of the map and of both sets."""
        state = blake2b(digest_size=8)
        for tensor in (self.matrix, self.bias, self.validation, self.test):
            state.update(b"identity" if tensor is None else tensor.numpy().tobytes())
        return state.hexdigest()

    def targets(self, inputs_ND: Tensor) -> Tensor:
        """What a model should say to inputs (N, D)."""
        if self.matrix is None:
            return inputs_ND
        return torch.addmm(self.bias, inputs_ND, self.matrix.T)


class LinearMapDataModule(DataModule):
    """Batches of inputs and targets, float32, (examples, width) each."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert isinstance(config.data, LinearMapConfig)
        self.map = LinearMap.of(config.data)

    @property
    def guess_loss(self) -> float:
        """That of always saying zero."""
        return self.map.targets(self.map.validation).square().mean().item()

    def training_batch(self, start: int, stop: int) -> Batch:
        inputs = examples(self.config.seed, self.map.bias.numel(), start, stop)
        return inputs, self.map.targets(inputs)

    def val_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation(self.map.validation)

    def test_dataloader(self) -> DataLoader[Batch]:
        return self._evaluation(self.map.test)

    def _evaluation(self, inputs_ND: Tensor) -> DataLoader[Batch]:
        def take(chosen: np.ndarray) -> Batch:
            inputs = inputs_ND[torch.from_numpy(chosen)]
            return inputs, self.map.targets(inputs)

        return self.evaluation(take, len(inputs_ND))


def examples(seed: int, width: int, start: int, stop: int) -> Tensor:
    """The inputs at places ``start`` to ``stop`` of the endless training stream, (N, D)."""
    blocks = range(start // _BLOCK, -(-stop // _BLOCK))
    drawn = torch.cat([_block(seed, width, block) for block in blocks])
    return drawn[start - blocks[0] * _BLOCK :][: stop - start]


@lru_cache(maxsize=2)  # batches meet within a block
def _block(seed: int, width: int, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(stream_seed(seed, "data order", number))
    return torch.randn(_BLOCK, width, generator=generator)
