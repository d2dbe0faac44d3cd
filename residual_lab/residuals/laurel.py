"""LAuReL: the residual connection with learned weights, a low-rank map and a memory."""

import math
from collections import deque
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.errors import ConfigError
from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.low_rank import LowRank, inverse_rms, project
from residual_lab.residuals.mixing import Weight, carry

Count = Annotated[int, Field(gt=0)]
PerDepth = float | tuple[float, float]  # one value, or the first and the last layer's


class ResidualWeights(nn.Module):
    """α and β of each layer, kept from growing without bound (section 2.1).

    bound: with logits a, b of each layer (the paper names softmax and sigmoid, not which)
        ``2softmax``      α, β = 2·softmax(a, b)
        ``softmax``       α, β = softmax(a, b)
        ``sigmoid_pair``  α = σ(a), β = σ(b)
        ``sigmoid``       α = σ(a), β = 1 − α
        ``free``          α = a, β = b
        ``fixed``         α, β stay as they start: a control, without parameters
    alpha, beta: initial values; the second may be left out where the first decides it.
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


class Laurel(Connection):
    """LAuReL, all variants and combinations.

        x' = α·f(x) + β·(x + Σ_{j<k} γ_j·h_j(x₋ⱼ))

            x₋₂ ──γ₂h₂──┐
            x₋₁ ──γ₁h₁──┤
            x ─┬──γ₀h₀──┤
               ├────────⊕───β──┐
               └───f───────α───⊕── x'

    RW learns α and β (else both are 1). LR is the low-rank map of x alone, ``h₀(x) = x A B``
    with γ₀ = 1 (``low_rank: current``). PA reads the last k activations, x itself included:
    h is the identity (``none``), one pair A, B for all lags (``shared``, eq. 4) or a pair per
    lag (``per_lag``, eq. 6); with ``current`` LR stands beside PA with identity h.

    Paper: LAuReL, arXiv 2411.07501, eq. 1-6
    Parameters: per layer RW 2 (sigmoid 1), LR 2rD, PA k, shared 2rD + k, per_lag 2rkD + k
    Identity: α = β = 1 and B = 0, or γ = 0 where h is the identity

    Args:
        residual_weights: RW.
        bound, alpha, beta, vector: see :class:`ResidualWeights`; ``vector`` learns an α and β
            for each feature (section 2.4).
        low_rank: none, current, shared or per_lag, as above.
        rank: r; None is D/24, the paper's 32 at width 768 (it found D/24 to D/32 best).
        low_rank_init: ``column_orthogonal`` or ``xavier``, see :class:`LowRank`.
        k: how many activations PA reads; 0 is no PA.
        gamma: initial γ; None is 0 where h is the identity and 1 where B = 0 already makes the
            term vanish (if both were zero, neither would ever get a gradient).
        missing: what the first layers see where fewer than k activations exist:
            ``embedding`` (it stands in for them) or ``drop`` (the terms do not exist).
        norm: an RMS norm with a learned scale of D per layer that no formula of the paper has
            but the parameter counts of its table 5 imply: on each input of the h_j, on the
            sum of the terms γ_j·h_j (its scale then starts at 0), or none.
    """

    identity: ClassVar = {"bound": "2softmax", "alpha": None, "beta": None}

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        residual_weights: bool = False,
        bound: Literal["2softmax", "softmax", "sigmoid_pair", "sigmoid", "free", "fixed"] = (
            "2softmax"
        ),
        alpha: PerDepth | None = None,
        beta: PerDepth | None = None,
        vector: bool = False,
        low_rank: Literal["none", "current", "shared", "per_lag"] = "none",
        rank: Count | None = None,
        low_rank_init: Literal["column_orthogonal", "xavier"] = "column_orthogonal",
        k: Annotated[int, Field(ge=0)] = 0,
        gamma: float | None = None,
        missing: Literal["embedding", "drop"] = "embedding",
        norm: Literal["none", "input", "output"] = "none",
    ) -> None:
        super().__init__(depth, width)
        if k == 0 and low_rank in ("shared", "per_lag"):
            raise ConfigError(f"residual.low_rank={low_rank}: needs k > 0; use low_rank=current")
        if norm != "none" and low_rank == "none" and k == 0:
            raise ConfigError(f"residual.norm={norm}: there is no LR or PA to normalise; use none")
        self.k, self.low_rank, self.missing, self.norm = k, low_rank, missing, norm
        self.alpha_is_positive = bound not in ("free", "fixed")
        self.weights = (
            ResidualWeights(depth, width if vector else 1, bound, alpha, beta)
            if residual_weights
            else None
        )
        self.pairs = {"none": 0, "current": 1, "shared": 1, "per_lag": k}[low_rank]
        self.maps = (
            LowRank(
                depth,
                self.pairs,
                width,
                rank or max(1, round(width / 24)),
                low_rank_init,
                zero_up=norm != "output",
            )
            if self.pairs
            else None
        )
        if k:
            start = float(low_rank in ("shared", "per_lag") or norm == "output")
            lags = k * depth if missing == "embedding" else sum(min(k, i + 1) for i in range(depth))
            self.gamma = nn.Parameter(torch.full((lags,), start if gamma is None else gamma))
        if norm != "none":
            self.scale = nn.Parameter(torch.full((depth, width), float(norm == "input")))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        one = [None] * self.depth
        alphas, betas = self.weights() if self.weights is not None else (one, one)
        maps = self.maps() if self.maps is not None else iter(one)
        scales = self.scale.unbind(0) if self.norm != "none" else one
        gammas = iter(self.gamma.split(1)) if self.k else iter(())
        memory = max(1, self.k)
        history = deque([x] * (memory if self.missing == "embedding" else 1), memory)
        for layer, alpha, beta, pair, scale in zip(
            layers, alphas, betas, maps, scales, strict=True
        ):
            lags = list(history)  # x, x₋₁, …, the newest first
            terms = self._terms(x, lags, [next(gammas) for _ in lags[: self.k]], beta, pair, scale)
            x = carry(layer(x), alpha, *terms, alpha_is_positive=self.alpha_is_positive)
            history.appendleft(x)
        return x

    def _terms(
        self,
        x: Tensor,
        lags: list[Tensor],
        gammas: list[Tensor],
        beta: Weight,
        pair: tuple[Sequence[Tensor], Tensor] | None,
        scale: Weight,
    ) -> tuple[Sequence[Tensor], Sequence[Weight], tuple[Tensor, Tensor] | None]:
        """Return β·g: the sources, their coefficients, and the low-rank term z B."""
        sources: list[Tensor] = []
        if self.low_rank in ("none", "current"):
            sources = lags[: len(gammas)]
            if self.norm == "input" and scale is not None:
                sources = [lag * inverse_rms(lag) * scale for lag in sources]
        coefficients = gammas[: len(sources)]
        inner = scale if self.norm == "input" else None
        low_rank = self._low_rank(lags, gammas, inner, *pair) if pair is not None else None
        if self.norm == "output":
            terms = [c * source for c, source in zip(coefficients, sources, strict=True)]
            terms += [low_rank[0] @ low_rank[1]] if low_rank is not None else []
            normed = F.rms_norm(reduce(add, terms), (self.width,), scale)
            return [x, normed], [beta, beta], None
        if beta is not None:
            coefficients = [beta * c for c in coefficients]
            low_rank = (low_rank[0], low_rank[1] * beta) if low_rank is not None else None
        if sources and sources[0] is x:  # x and γ₀·x are one term
            own = 1 + gammas[0] if beta is None else beta * (1 + gammas[0])
            return sources, [own, *coefficients[1:]], low_rank
        return [x, *sources], [beta, *coefficients], low_rank

    def _low_rank(
        self,
        lags: list[Tensor],
        gammas: list[Tensor],
        scale: Weight,
        down: Sequence[Tensor],
        up: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return z (…, R) and B (R, D) of the low-rank term."""
        if self.low_rank == "current":
            return project(lags[0], down[0], scale), up
        downs = down if self.low_rank == "per_lag" else [down[0]] * len(lags)
        parts = [
            gamma * project(lag, a, scale)
            for gamma, lag, a in zip(gammas, lags, downs, strict=False)
        ]
        if self.low_rank == "shared":
            return reduce(add, parts), up
        z = torch.cat(parts, -1)
        return z, up[: z.shape[-1]]
