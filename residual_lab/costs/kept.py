"""What a connection makes autograd keep for backward, counted from the tensors that it saves."""

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from residual_lab.config.data import ImageDataConfig
from residual_lab.config.schema import Config
from residual_lab.costs.estimate import allocate
from residual_lab.data.batches import example_batch, inputs_and_targets
from residual_lab.measure.parameters import count_parameters
from residual_lab.models import build_model

_TOKENS = 8


class KeptByPlain:
    """The base of the comparison: a configuration with ``residual=plain``."""

    def __init__(self, plain: Config) -> None:
        self._unit = _increments(plain)
        self._parameters, self._kept = _costs(plain)

    def costs_of(self, config: Config) -> tuple[int, float]:
        """Parameters that ``config`` has more, and activations that it keeps more, per layer.

        An activation is one value for each token and feature; of images, what one layer adds to the
        stream, the mean over the layers. Norms that layers are without, or
        have more of, count as the connection's doing.
        """
        parameters, kept = _costs(config)
        return parameters - self._parameters, (kept - self._kept) / self._unit


def _increments(config: Config) -> float:
    """Values that all layers together add to the stream, for each token or image."""
    if not isinstance(config.data, ImageDataConfig):
        return config.model.width * config.model.layers
    values = 0

    def count(unit: nn.Module, inputs: object, increment: Tensor) -> None:
        nonlocal values
        values += increment.numel()

    with torch.device("meta"):
        model = build_model(config)
        for unit in model.units:
            unit.register_forward_hook(count)
        model.hidden(inputs_and_targets(example_batch(config, 1))[0])
    return values / len(model.units) * config.model.layers


def _costs(config: Config) -> tuple[int, float]:
    """Parameters of the whole model, and values kept for each token."""
    short, long = (_saved(config, tokens) for tokens in (_TOKENS, 2 * _TOKENS))
    with torch.device("meta"):
        parameters = count_parameters(build_model(config))["params"]
    return parameters, (long - short) / _TOKENS


def _saved(config: Config, tokens: int) -> float:
    """Values (of four bytes) in all storages that autograd keeps of a forward pass.

    What grows with the tokens is an activation: weights, and what is made of them, cancel in
    the difference of two lengths.
    """
    sizes: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        alive.append(tensor)  # so that no address comes twice
        storage = tensor.untyped_storage()
        sizes[storage._cdata] = storage.nbytes()
        return tensor

    with torch.device("meta"):
        model = build_model(config)
    with FakeTensorMode(allow_non_fake_inputs=True):  # meta tensors take another attention
        allocate(model, torch.float32)
        inputs, _ = inputs_and_targets(example_batch(config, 1, length=tokens))
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            model.hidden(inputs)
        return sum(sizes.values()) / 4
