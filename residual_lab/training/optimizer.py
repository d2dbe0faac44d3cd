"""The optimizer in three named groups: base parameters with and without decay, the connection's."""

from typing import Any

from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from residual_lab.config.schema import OptimConfig

CONNECTION = "connection"


def is_connection(name: str) -> bool:
    """Whether ``name``, a parameter of the model, belongs to its residual connection."""
    return name.startswith(f"{CONNECTION}.")


def parameter_groups(model: nn.Module, optim: OptimConfig) -> list[dict[str, Any]]:
    """The groups ``base_decayed``, ``base_not_decayed`` and ``connection``, without empty ones.

    Each holds its ``lr_factor`` relative to ``optim.lr`` and its ``weight_decay``. With
    ``optim.decay: matrices`` the base parameters of one dimension (norms, biases) do not decay.
    A group's first learning rate is never used: the schedule sets it before every step.
    """
    groups: dict[str, dict[str, Any]] = {
        "base_decayed": {"lr_factor": 1.0, "weight_decay": optim.weight_decay},
        "base_not_decayed": {"lr_factor": 1.0, "weight_decay": 0.0},
        CONNECTION: {
            "lr_factor": optim.connection_lr_factor,
            "weight_decay": optim.connection_weight_decay,
        },
    }
    members: dict[str, list[nn.Parameter]] = {name: [] for name in groups}
    for name, parameter in model.named_parameters():
        decayed = optim.decay == "all" or parameter.ndim >= 2
        base = "base_decayed" if decayed else "base_not_decayed"
        members[CONNECTION if is_connection(name) else base].append(parameter)
    return [
        {"name": name, "params": members[name], **options}
        for name, options in groups.items()
        if members[name]
    ]


def build_optimizer(model: nn.Module, optim: OptimConfig, fused: bool) -> Optimizer:
    """What ``optim.optimizer`` names, over :func:`parameter_groups`.

    AdamW's decay is decoupled (Loshchilov and Hutter 2019); SGD adds it to the gradient.
    """
    groups = parameter_groups(model, optim)
    if optim.optimizer == "sgd":
        return SGD(groups, lr=optim.lr, momentum=optim.momentum, fused=fused)
    return AdamW(
        groups,
        lr=optim.lr,
        betas=optim.betas,
        eps=optim.epsilon,
        fused=fused,
    )
