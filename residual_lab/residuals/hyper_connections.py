"""Hyper-Connections: n streams with learned reading, mixing and writing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_weights import unfold
from residual_lab.residuals.low_rank import project_layer_normed, project_normed
from residual_lab.residuals.streams import Reduce, expand, mix, reduce, reduce_weights, static

Count = Annotated[int, Field(gt=0)]
Norm = Literal["rmsnorm", "layernorm"]


class Dynamic(NamedTuple):
    """What one layer adds to its static weights for each token: s ∘ tanh(norm(H) W)."""

    maps: Tensor  # W, (D, m), the last column for B
    alpha_scale: Tensor  # (1,)
    beta_scale: Tensor  # (1,)

    def __call__(
        self, streams: Tensor, bounded: bool, norm: Norm = "rmsnorm"
    ) -> tuple[Tensor, Tensor]:
        """Return ΔA (n, m − 1, …, 1) and ΔB (n, …, 1) for streams (n, …, D)."""
        project = project_normed if norm == "rmsnorm" else project_layer_normed
        delta = project(streams, self.maps)  # norm(H) W
        if bounded:
            delta = torch.tanh(delta)
        alpha, beta = delta.split([delta.shape[-1] - 1, 1], -1)
        return self.alpha_scale * alpha.movedim(-1, 1)[..., None], self.beta_scale * beta


class HyperConnections(Connection):
    """Hyper-Connections, static (SHC) and dynamic (DHC).

        H₀ = (x, …, x);  H' = A_rᵀH + Bᵀ f(A_mᵀH);  y = Σ_i H_i

        H ═╦══ A_r ═══════⊕══ H'      H: n streams, (n, …, D)
           ╚══ A_m ── f ──B╝

    Static: A_m (n), A_r (n × n) and B (n) are learned. Dynamic adds to each of them what every
    token says: ``A(H) = A + s_α·tanh(norm(H) W)``, ``B(H) = B + s_β·tanh(norm(H) W_β)``.
    norm is of each stream h: ``rmsnorm`` is h / √(mean(h²) + 1e-6), ``layernorm``, which the
    paper has, (h − mean(h)) / √(var(h) + 1e-5), var being that of the D features. Neither has a
    scale or a bias of its own, for which the paper's parameter counts have no room.

    Paper: Zhu et al. 2025, Hyper-Connections, arXiv 2409.19606, eq. 1-13 and appendix J
    Parameters: per layer static n(n + 2), dynamic + D(n + 2) + 2
    Identity: at the start (B = 1, A_m = e_{k mod n}, A_r = I, W = 0) if the streams are averaged
        and the layers start as plain's
    Kept for backward: per layer n + 1 activations, the streams and f

    Args:
        n: streams; the paper's 4. One is worse than no hyper-connections (its table 1).
        dynamic: add the part that depends on the token.
        bounded: the tanh around it.
        norm: ``rmsnorm``, or ``layernorm`` as in the paper; of the part that depends on the token.
        scale: s_α and s_β at the start.
        reduce: how the streams become the output: ``sum``, as in the paper, or ``mean``, which
            the model's last norm only tells apart by its epsilon.
        scale_outputs: multiply the initial standard deviation of the layers' output projections,
            attention's and the MLP's second map, by √n, as in the paper. Without, layers start
            with the weights that plain's have.
    """

    identity: ClassVar = {"reduce": "mean", "scale_outputs": False}

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        n: Count = 4,
        dynamic: bool = True,
        bounded: bool = True,
        norm: Norm = "rmsnorm",
        scale: float = 0.01,
        reduce: Reduce = "sum",
        scale_outputs: bool = False,
    ) -> None:
        super().__init__(depth, width)
        self.n, self.dynamic, self.bounded, self.norm = n, dynamic, bounded, norm
        self.reduce = reduce
        self.initial_gains: Mapping[str, float] = {"outputs": n**0.5} if scale_outputs else {}
        self.A_m = nn.Parameter(torch.eye(n)[torch.arange(depth) % n])
        self.A_r = nn.Parameter(torch.eye(n).repeat(depth, 1, 1))
        self.B = nn.Parameter(torch.ones(depth, n))
        if dynamic:
            self.W = nn.Parameter(torch.zeros(depth, width, n + 2))  # for A_m, A_r, B
            self.s_alpha = nn.Parameter(torch.full((depth, 1), scale))
            self.s_beta = nn.Parameter(torch.full((depth, 1), scale))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        streams = expand(x, self.n)
        for layer, weights, dynamic in zip(layers, self._weights(x), self._maps(), strict=True):
            A_m, A_r, B = weights
            if dynamic is not None:
                delta_A, delta_B = dynamic(streams, self.bounded, self.norm)
                A_m, A_r, B = A_m + delta_A[:, :1], A_r + delta_A[:, 1:], B + delta_B
            f = layer(mix(A_m, streams)[0])
            streams = mix(A_r, streams, B, f)
        return reduce(streams, self.reduce)

    @torch.no_grad()
    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """The static part unfolded: the dense connection that it amounts to, as the paper draws."""
        output = reduce_weights(self.n, self.reduce, self.B)
        return {"weights": unfold(self.A_m, self.A_r, self.B, output)}

    def _weights(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield each layer's static A_m (n, 1, …), A_r (n, n, …) and B (n, …)."""
        for A_m, A_r, B in zip(*(w.unbind(0) for w in (self.A_m, self.A_r, self.B)), strict=True):
            yield static(A_m[:, None], x.ndim), static(A_r, x.ndim), static(B, x.ndim)

    def _maps(self) -> Sequence[Dynamic | None]:
        if not self.dynamic:
            return [None] * self.depth
        parts = (self.W.unbind(0), self.s_alpha.unbind(0), self.s_beta.unbind(0))
        return [Dynamic(*part) for part in zip(*parts, strict=True)]
