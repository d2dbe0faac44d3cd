"""The learned numbers of LAuReL: α and β of each layer, γ of each activation that it reads."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from residual_lab.errors import ConfigError

PerDepth = float | tuple[float, float]  # one value, or the first and the last layer's
GammaBound = Literal["free", "softmax", "tanh"]


class ResidualWeights(nn.Module):
    """α and β of each layer, kept from growing without bound (section 2.1).

    bound: with logits a, b of each layer (the paper names softmax and sigmoid, not which)
        ``2softmax``      α, β = 2·softmax(a, b)
        ``softmax``       α, β = softmax(a, b)
        ``sigmoid_pair``  α = σ(a), β = σ(b)
        ``sigmoid``       α = σ(a), β = 1 − α
        ``free``          α = a, β = b
        ``fixed``         α, β stay as they start: a control, without parameters
    alpha, beta: initial values; None is 1 with 2softmax and free, else ½. The second may be left
        out where the first decides it.
    width: 1 for scalars, D for vectors.
    """

    weights: Tensor

    def __init__(
        self,
        depth: int,
        width: int,
        bound: str,
        alpha: PerDepth | None,
        beta: PerDepth | None,
    ) -> None:
        super().__init__()
        self.bound = bound
        total = {"2softmax": 2.0, "softmax": 1.0, "sigmoid": 1.0}.get(bound)
        middle = 1.0 if bound in ("2softmax", "free") else 0.5
        alphas = _over_depth(middle if alpha is None else alpha, depth)
        betas = _over_depth(middle if beta is None else beta, depth)
        if beta is None and total is not None:
            betas = [total - value for value in alphas]
        _check(bound, total, alphas, betas)
        pairs = [_logits(bound, *pair) for pair in zip(alphas, betas, strict=True)]
        initial = torch.tensor(pairs).T[:, :, None].repeat(1, 1, width)  # (1 or 2, L, D)
        if bound == "fixed":
            self.register_buffer("weights", initial)
        else:
            self.logits = nn.Parameter(initial)

    def forward(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Return α and β of each layer, each of shape (width,)."""
        if self.bound == "fixed":
            alphas, betas = self.weights.unbind(0)
        elif self.bound == "sigmoid":
            alphas = torch.sigmoid(self.logits[0])
            betas = 1 - alphas
        else:
            bounds = {
                "2softmax": lambda logits: 2 * torch.softmax(logits, 0),
                "softmax": lambda logits: torch.softmax(logits, 0),
                "sigmoid_pair": torch.sigmoid,
                "free": lambda logits: logits,
            }
            alphas, betas = bounds[self.bound](self.logits)
        return alphas.unbind(0), betas.unbind(0)


def _over_depth(value: PerDepth, depth: int) -> list[float]:
    first, last = value if isinstance(value, tuple | list) else (value, value)
    return [first + (last - first) * layer / max(1, depth - 1) for layer in range(depth)]


def _check(bound: str, total: float | None, alphas: list[float], betas: list[float]) -> None:
    """Refuse initial values that ``bound`` cannot take."""
    sums = [alpha + beta for alpha, beta in zip(alphas, betas, strict=True)]
    if total is not None and any(abs(value - total) > 1e-9 for value in sums):
        raise ConfigError(
            f"residual.beta: bound={bound} gives α + β = {total:g}; leave beta out or change bound"
        )
    ceiling = 2.0 if bound == "2softmax" else 1.0
    if bound not in ("free", "fixed") and not all(0 < v < ceiling for v in alphas + betas):
        raise ConfigError(
            f"residual.alpha: bound={bound} gives weights between 0 and {ceiling:g}, both excluded"
        )


def _logits(bound: str, alpha: float, beta: float) -> list[float]:
    """Return what ``bound`` maps to α and β."""
    if bound in ("free", "fixed"):
        return [alpha, beta]
    if bound in ("2softmax", "softmax"):
        half = math.log(alpha / beta) / 2
        return [half, -half]
    logits = [math.log(value / (1 - value)) for value in (alpha, beta)]
    return logits[:1] if bound == "sigmoid" else logits


def gamma_logit(bound: GammaBound, gamma: float | None, vanishes: bool) -> float:
    """Return what :func:`bound_gammas` maps to the initial ``gamma``.

    None is 0, or, where the term ``vanishes`` at the start anyway, a value whose gradient lives.
    Raises ConfigError where ``bound`` cannot take ``gamma``.
    """
    if bound == "softmax":
        if gamma is not None:
            raise ConfigError(
                f"residual.gamma={gamma}: gamma_bound=softmax starts with equal γ, 1/k each; "
                "leave gamma out or change gamma_bound"
            )
        return 0.0
    if gamma is None:
        gamma = 0.0 if not vanishes else 1.0 if bound == "free" else 0.5
    if bound == "free":
        return gamma
    if abs(gamma) >= 1:
        raise ConfigError(f"residual.gamma={gamma}: gamma_bound=tanh gives γ between −1 and 1")
    return math.atanh(gamma)


def bound_gammas(logits: Tensor, bound: GammaBound) -> Tensor:
    """Return the γ of one layer, (k,), from as many learned numbers."""
    if bound == "softmax":
        return torch.softmax(logits, 0)
    return torch.tanh(logits) if bound == "tanh" else logits
