"""What a batch holds: token ids, each the target of those before it, or inputs and targets."""

from collections.abc import Sequence

import torch
from torch import Tensor

from residual_lab.config.data import ImageDataConfig, LinearMapConfig
from residual_lab.config.models import DecoderConfig
from residual_lab.config.schema import Config

Batch = Tensor | Sequence[Tensor]


def inputs_and_targets(batch: Batch) -> tuple[Tensor, Tensor]:
    """What the model reads and what it should say: of token ids (B, T + 1) all but one each."""
    if isinstance(batch, Tensor):
        return batch[:, :-1], batch[:, 1:]
    inputs, targets = batch
    return inputs, targets


def predictions(batch: Batch) -> int:
    """How many predictions a batch asks for, which its loss is a mean over: tokens or examples."""
    targets = inputs_and_targets(batch)[1]
    return targets.numel() if isinstance(batch, Tensor) else len(targets)


def example_batch(
    config: Config,
    sequences: int,
    *,
    length: int | None = None,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Batch:
    """A batch as training reads it, without its data: zeros, or drawn from ``generator``.

    ``length`` takes the place of ``data.sequence_length``; ``dtype`` is that of vectors and images.
    """
    length = length or config.data.sequence_length
    if isinstance(config.data, LinearMapConfig):
        shape = (sequences * length, config.data.width)
        if generator is None:
            return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)
        inputs, targets = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
        return inputs, targets
    if isinstance(config.data, ImageDataConfig):
        return _example_images(config.data, sequences * length, generator, dtype)
    if generator is None:
        return torch.zeros(sequences, length + 1, dtype=torch.long)
    assert isinstance(config.model, DecoderConfig)
    return torch.randint(config.model.vocabulary, (sequences, length + 1), generator=generator)


def _example_images(
    data: ImageDataConfig, images: int, generator: torch.Generator | None, dtype: torch.dtype
) -> Batch:
    shape = (images, data.channels, data.image_size, data.image_size)
    if generator is None:
        return torch.zeros(shape, dtype=dtype), torch.zeros(images, dtype=torch.long)
    pixels = torch.randn(shape, generator=generator).to(dtype)
    return pixels, torch.randint(data.classes, (images,), generator=generator)
