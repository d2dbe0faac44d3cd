"""Which sequences a training step and an evaluation batch hold: pure functions, no state.

Training reads an endless stream: a permutation of all sequences for each epoch, one behind the
other. Optimizer step s takes the G sequences from s·G on, whatever the devices: of these, rank r of
W takes in micro-batch m of A the part m·W + r of A·W equal parts.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from residual_lab.errors import ConfigError


@lru_cache(maxsize=2)  # a batch may lie across the border of two epochs
def permutation(seed: int, epoch: int, windows: int) -> NDArray[np.uint32]:
    """The order of an epoch: sequences sorted by 64 random bits each, from Philox(seed, epoch).

    The bits of a counter-based generator are the same in every version of NumPy.
    """
    bits = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64)).random_raw(windows)
    return np.argsort(bits, kind="stable").astype(np.uint32)


def sequences(seed: int, windows: int, start: int, stop: int) -> NDArray[np.int64]:
    """The sequences at places ``start`` to ``stop`` of the endless training stream."""
    parts = []
    while start < stop:
        epoch, offset = divmod(start, windows)
        part = permutation(seed, epoch, windows)[offset : offset + stop - start]
        parts.append(part.astype(np.int64))
        start += len(part)
    return np.concatenate(parts)


def micro_batch_size(batch_sequences: int, accumulate: int, world_size: int) -> int:
    """Sequences of one device and one micro-batch; raises :class:`ConfigError`."""
    size, rest = divmod(batch_sequences, accumulate * world_size)
    if rest or not size:
        raise ConfigError(
            f"budget.batch_tokens: {batch_sequences} sequences a step cannot be dealt out to "
            f"{world_size} devices x hardware.accumulate={accumulate}: choose a batch that "
            f"{accumulate * world_size} divides"
        )
    return size


def evaluation_batches(
    windows: int, batch_sequences: int, rank: int, world_size: int
) -> list[NDArray[np.int64]]:
    """A rank's batches: every sequence once over all ranks, as many batches on each of them.

    No rank waits in a collective operation that the others do not enter, and nothing is padded.
    Batches differ in size by one at most and have ``batch_sequences`` sequences at most (one more
    where a batch would otherwise be empty).
    """
    if windows < world_size:
        raise ConfigError(
            f"hardware.devices: {world_size} processes for {windows} evaluation sequences: use "
            "fewer, or raise data.validation_tokens and data.test_tokens"
        )
    rounds = min(-(-windows // (batch_sequences * world_size)), windows // world_size)
    return np.array_split(np.arange(windows), rounds * world_size)[rank::world_size]
