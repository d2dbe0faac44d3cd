"""Initial values of a transformer's base weights, the same whatever the connection adds."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from residual_lab.config.models import TransformerConfig
from residual_lab.models.attention import Attention
from residual_lab.models.low_rank_linear import LowRankLayer
from residual_lab.models.mlp import MLP


@torch.no_grad()
def initialise(model: nn.Module, config: TransformerConfig) -> None:
    """Fill the base weights in place, drawing from torch's global generator.

    ``gpt2``: N(0, 0.02), the two output maps of a layer N(0, 0.02/√(2·layers)) (Radford et al.
    2019). ``xavier``: Xavier uniform maps and N(0, 1/width) embeddings, as in NanoDO.
    ``embedding_std`` changes the embeddings alone. Biases start at 0, norms at 1.
    """
    output_std = 0.02 / (2 * config.layers) ** 0.5
    embedding_std = config.embedding_std or (0.02 if config.init == "gpt2" else config.width**-0.5)
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.weight.normal_(std=embedding_std)
        elif isinstance(module, Attention):
            for weight in module.qkv.weight.chunk(3):
                _fill(weight, config, 0.02)
            _fill(module.out.weight, config, output_std)
        elif isinstance(module, MLP):
            for weight in module.up.weight.chunk(2 if module.gated else 1):
                _fill(weight, config, 0.02)
            _fill(module.down.weight, config, output_std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()
    head = getattr(model, "head", None)
    if head is not None:
        _fill(head.weight, config, 0.02)


@torch.no_grad()
def scale_initial_weights(model: nn.Module, gains: Mapping[str, float]) -> None:
    """Multiply weights in place by ``Connection.initial_gains``, 1 where it says nothing."""
    if not gains:
        return
    for module in model.modules():
        if isinstance(module, Attention):
            module.qkv.weight.chunk(3)[2].mul_(gains.get("values", 1.0))
            module.out.weight.mul_(gains.get("outputs", 1.0))
        elif isinstance(module, MLP):
            module.up.weight.mul_(gains.get("mlp_inputs", 1.0))
            module.down.weight.mul_(gains.get("outputs", 1.0))
        elif isinstance(module, LowRankLayer):
            module.W.mul_(gains.get("outputs", 1.0))


def _fill(weight: Tensor, config: TransformerConfig, std: float) -> None:
    if config.init == "gpt2":
        weight.normal_(std=std)
    else:
        nn.init.xavier_uniform_(weight)
