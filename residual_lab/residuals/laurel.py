"""LAuReL: the residual connection with learned weights, a low-rank map and a memory."""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import reduce
from math import nan
from operator import add
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.errors import ConfigError
from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_weights import by_layer
from residual_lab.residuals.laurel_weights import (
    GammaBound,
    PerDepth,
    ResidualWeights,
    bound_gammas,
    gamma_logit,
)
from residual_lab.residuals.low_rank import LowRank, Projections, inverse_rms
from residual_lab.residuals.mixing import Weight, carry, weighted_sum

Count = Annotated[int, Field(gt=0)]


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
    Identity: α = β = 1 and B = 0, or γ = 0 where h is the identity; PA with h the identity and
        softmax γ has none

    Args:
        residual_weights: RW.
        bound, alpha, beta, vector: see :class:`ResidualWeights`; ``vector`` learns an α and β
            for each feature (section 2.4).
        low_rank: none, current, shared or per_lag, as above.
        rank: r; None is D/24, the paper's 32 at width 768 (it found D/24 to D/32 best).
        low_rank_init: ``column_orthogonal`` or ``xavier``, see :class:`LowRank`.
        k: how many activations PA reads; 0 is no PA.
        gamma: initial γ; None is 0 where h is the identity and 1 (tanh: ½) where B = 0, or the
            scale of ``norm: output``, already makes the term vanish (if both were zero, neither
            would ever get a gradient).
        gamma_bound: how γ is normalised, which the paper leaves open: ``free`` is not at all,
            ``softmax`` over the activations that a layer reads (equal at the start, 1/k each,
            so ``gamma`` must be None), ``tanh`` between −1 and 1.
        missing: what the first layers see where fewer than k activations exist:
            ``embedding`` (it stands in for them) or ``drop`` (the terms do not exist; of
            ``per_lag`` their pairs A, B are there but unused, and the one ``softmax`` γ of the
            first layer is always 1).
        norm: an RMS norm with a learned scale of D per layer that no formula of the paper has
            but the parameter counts of its table 5 imply: on each input of the h_j, on the
            sum of the terms γ_j·h_j (its scale then starts at 0), or none.
        every, offset: LAuReL stands beside every so many layers, the first of them at ``offset``;
            the others are plain, ``x' = f(x) + x``, and have no parameters. Where attention and
            MLP are layers of their own (granularity ``branch``), every 2 with offset 0 is beside
            the attentions alone, as Gemma 3n has it, with offset 1 beside the MLPs alone. PA
            reads the last k activations whichever layers they come from.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {
        "bound": "2softmax",
        "alpha": None,
        "beta": None,
        "gamma": None,
        "gamma_bound": "free",
    }

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
        gamma_bound: GammaBound = "free",
        missing: Literal["embedding", "drop"] = "embedding",
        norm: Literal["none", "input", "output"] = "none",
        every: Count = 1,
        offset: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        super().__init__(depth, width)
        _check(depth, low_rank, k, gamma_bound, norm, every, offset)
        self.k, self.low_rank, self.missing, self.norm = k, low_rank, missing, norm
        self.gamma_bound, self.every, self.offset = gamma_bound, every, offset
        places = range(offset, depth, every)
        self.alpha_is_positive = bound not in ("free", "fixed")
        self.weights = (
            ResidualWeights(len(places), width if vector else 1, bound, alpha, beta)
            if residual_weights
            else None
        )
        self.pairs = {"none": 0, "current": 1, "shared": 1, "per_lag": k}[low_rank]
        self.maps = (
            LowRank(
                len(places),
                self.pairs,
                width,
                rank or max(1, round(width / 24)),
                low_rank_init,
                zero_up=norm != "output",
            )
            if self.pairs
            else None
        )
        self.memory = max(1, k)
        self.lags = [k if missing == "embedding" else min(k, i + 1) for i in places]
        self.reads = self._reads(places) if self.pairs else []
        self.readers = _readers(depth, self.reads)
        if k:
            vanishes = low_rank in ("shared", "per_lag") or norm == "output"
            start = gamma_logit(gamma_bound, gamma, vanishes)
            self.gamma = nn.Parameter(torch.full((sum(self.lags),), start))
        if norm != "none":
            self.scale = nn.Parameter(torch.full((len(places), width), float(norm == "input")))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        one = [None] * len(self.lags)
        alphas, betas = self.weights() if self.weights is not None else (one, one)
        ups = self.maps() if self.maps is not None else one
        scales = self.scale.unbind(0) if self.norm != "none" else one
        places = enumerate(zip(alphas, betas, scales, self._gammas(), ups, strict=True))
        projections = self._projections(scales)
        history = deque([x] * (self.memory if self.missing == "embedding" else 1), self.memory)
        for index, layer in enumerate(layers):
            if projections is not None:
                projections.append(x)
            if index % self.every == self.offset:
                place, (alpha, beta, scale, gammas, up) = next(places)
                low_rank = None
                if projections is not None and up is not None:
                    parts = [projections.z[s][place, pair] for s, pair in self.reads[place]]
                    low_rank = self._low_rank(parts, gammas, up)
                lags = list(history)  # x, x₋₁, …, the newest first
                terms = self._terms(x, lags, gammas, beta, low_rank, scale)
                f, alpha = self.scaled_increment(layer, x, alpha)
                x = carry(
                    f,
                    alpha,
                    *terms,
                    alpha_is_positive=self.alpha_is_positive,
                    relu=self.relu_after_sum,
                )
            else:
                x = self.after_sum(x + layer(x))
            history.appendleft(x)
        return x

    @torch.no_grad()
    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """α and β (L,) and γ (L, k), of the layers that have LAuReL."""
        places = range(self.offset, self.depth, self.every)
        found = {}
        if self.weights is not None:
            for name, values in zip(("alpha", "beta"), self.weights(), strict=True):
                found[name] = by_layer(self.depth, places, torch.stack(list(values)).mean(-1))
        if self.k:
            gammas = self.gamma.new_full((len(places), self.k), nan)
            for row, logits in zip(gammas, self.gamma.split(self.lags), strict=True):
                row[: len(logits)] = bound_gammas(logits, self.gamma_bound)
            found["gamma"] = by_layer(self.depth, places, gammas)
        return found

    def _gammas(self) -> Sequence[Weight]:
        """Return the γ of each layer that has LAuReL, (lags,)."""
        if not self.k:
            return [None] * len(self.lags)
        return [bound_gammas(g, self.gamma_bound) for g in self.gamma.split(self.lags)]

    def _reads(self, places: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Return the activations, and the pairs for them, that each layer's low-rank map reads."""
        lags = [1] * len(places) if self.low_rank == "current" else self.lags
        return [
            [(max(index - lag, 0), lag if self.low_rank == "per_lag" else 0) for lag in range(n)]
            for index, n in zip(places, lags, strict=True)
        ]

    def _projections(self, scales: Sequence[Weight]) -> Projections | None:
        if self.maps is None:
            return None
        inner = scales if self.norm == "input" else [None] * len(scales)
        return Projections(self.maps.down, self.readers, inner)

    def _terms(
        self,
        x: Tensor,
        lags: list[Tensor],
        gammas: Weight,
        beta: Weight,
        low_rank: tuple[Tensor, Tensor] | None,
        scale: Weight,
    ) -> tuple[Sequence[Tensor], Sequence[Weight], tuple[Tensor, Tensor] | None]:
        """Return β·g: the sources, their coefficients, and the low-rank term z B."""
        sources: list[Tensor] = []
        coefficients: list[Tensor] = []
        if gammas is not None and self.low_rank in ("none", "current"):
            coefficients = list(gammas.split(1))
            sources = lags[: len(coefficients)]
            if self.norm == "input" and scale is not None:
                sources = [lag * inverse_rms(lag) * scale for lag in sources]
        if self.norm == "output":
            terms = [c * source for c, source in zip(coefficients, sources, strict=True)]
            terms += [low_rank[0] @ low_rank[1]] if low_rank is not None else []
            normed = F.rms_norm(reduce(add, terms), (self.width,), scale)
            return [x, normed], [beta, beta], None
        if low_rank is not None and beta is not None:
            low_rank = (low_rank[0], low_rank[1] * beta)
        if sources and sources[0] is x:  # x and γ₀·x are one term
            coefficients[0] = 1 + coefficients[0]
            return sources, [c if beta is None else beta * c for c in coefficients], low_rank
        weights = [c if beta is None else beta * c for c in coefficients]
        return [x, *sources], [beta, *weights], low_rank

    def _low_rank(
        self, parts: Sequence[Tensor], gammas: Weight, up: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return z (…, R) and B (R, D) of Σ_j γ_j·(x₋ⱼ A_j) B_j; ``parts`` are the x₋ⱼ A_j."""
        if self.low_rank == "current":
            return parts[0], up
        assert gammas is not None
        if self.low_rank == "shared":
            return weighted_sum(gammas.split(1), parts), up
        rank = parts[0].shape[-1]
        up = up[: rank * len(parts)] * gammas.repeat_interleave(rank)[:, None]
        return torch.cat(list(parts), -1), up


def _readers(depth: int, reads: Sequence[Sequence[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Return the layers that read each activation, each with the pair that it is projected by."""
    readers: list[dict[tuple[int, int], None]] = [{} for _ in range(depth)]
    for place, sources in enumerate(reads):
        for source, pair in sources:
            readers[source][place, pair] = None
    return [list(found) for found in readers]


def _check(
    depth: int, low_rank: str, k: int, gamma_bound: str, norm: str, every: int, offset: int
) -> None:
    """Refuse options that have no meaning together."""
    if k == 0 and low_rank in ("shared", "per_lag"):
        raise ConfigError(f"residual.low_rank={low_rank}: needs k > 0; use low_rank=current")
    if norm != "none" and low_rank == "none" and k == 0:
        raise ConfigError(f"residual.norm={norm}: there is no LR or PA to normalise; use none")
    if gamma_bound != "free" and k == 0:
        raise ConfigError(f"residual.gamma_bound={gamma_bound}: needs k > 0; use free")
    if gamma_bound == "softmax" and k == 1:
        raise ConfigError(
            "residual.gamma_bound=softmax: the γ of one activation is always 1; "
            "use k > 1 or another bound"
        )
    if offset >= min(every, depth):
        raise ConfigError(
            f"residual.offset={offset}: must be below residual.every={every} and the number "
            f"of layers, {depth}"
        )
