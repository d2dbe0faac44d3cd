"""The data order against slow references, for many numbers of devices."""

import numpy as np
import pytest

from residual_lab.data.order import evaluation_batches, micro_batch_size, permutation, sequences
from residual_lab.errors import ConfigError


def slow_stream(seed: int, windows: int, length: int) -> list[int]:
    """The endless stream's beginning, an epoch at a time, by sorting in Python."""
    stream: list[int] = []
    epoch = 0
    while len(stream) < length:
        philox = np.random.Philox(key=seed + (epoch << 64))
        bits = [int(philox.random_raw()) for _ in range(windows)]
        stream += sorted(range(windows), key=bits.__getitem__)
        epoch += 1
    return stream[:length]


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_stream_equals_slow_reference(seed: int) -> None:
    expected = slow_stream(seed, 37, 300)
    assert sequences(seed, 37, 0, 300).tolist() == expected
    for start in (0, 1, 36, 37, 100, 250):
        assert sequences(seed, 37, start, start + 40).tolist() == expected[start : start + 40]


def test_order_is_written_down() -> None:
    """The order that earlier results were made with: a new NumPy must not change it."""
    assert permutation(0, 0, 10).tolist() == [0, 2, 9, 1, 8, 5, 4, 3, 6, 7]


def test_each_epoch_holds_every_sequence_once() -> None:
    epochs = [sequences(3, 50, 50 * epoch, 50 * epoch + 50) for epoch in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_seeds_and_epochs_differ() -> None:
    orders = {tuple(permutation(seed, epoch, 40)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


@pytest.mark.parametrize(("seed", "accumulate", "world"), [(0, 1, 3), (0, 4, 1), (7, 2, 3)])
def test_micro_batch_size(seed: int, accumulate: int, world: int) -> None:
    assert micro_batch_size(12, accumulate, world) * accumulate * world == 12


@pytest.mark.parametrize(("sequences_", "accumulate", "world"), [(12, 5, 1), (12, 1, 24)])
def test_batch_that_cannot_be_dealt_out(sequences_: int, accumulate: int, world: int) -> None:
    with pytest.raises(ConfigError, match=r"hardware.accumulate"):
        micro_batch_size(sequences_, accumulate, world)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("windows", [5, 16, 17, 95, 96, 97])
@pytest.mark.parametrize("size", [1, 8, 64])
def test_evaluation_covers_everything_once(windows: int, size: int, world: int) -> None:
    ranks = [evaluation_batches(windows, size, rank, world) for rank in range(world)]
    seen = [int(index) for batches in ranks for batch in batches for index in batch]
    assert sorted(seen) == list(range(windows))
    assert len({len(batches) for batches in ranks}) == 1  # as many collective operations
    lengths = [len(batch) for batches in ranks for batch in batches]
    assert 1 <= min(lengths) <= max(lengths) <= min(lengths) + 1
    assert max(lengths) <= size or (max(lengths) == size + 1 and windows < len(lengths) + world)


def test_more_ranks_than_sequences() -> None:
    with pytest.raises(ConfigError, match="8 processes for 5 evaluation sequences"):
        evaluation_batches(5, 16, 0, 8)
