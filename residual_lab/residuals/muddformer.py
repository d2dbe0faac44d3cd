"""MUDDFormer: multiway dynamic dense connections."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_weights import triangle
from residual_lab.residuals.low_rank import project_normed
from residual_lab.residuals.mixing import weighted_sum

Weigh = Callable[[Tensor], Sequence[Tensor]]


class MuddFormer(Connection):
    """MUDDFormer with one stream: each layer reads a weighted sum of all earlier states.

        X_{i+1} = f(X̄_i) + X̄_i,   X̄_i = Σ_{j≤i} A_ij·X_j,   X̄_0 = X_0
        A_i = GELU(norm(X_i) W₁) W₂ + a_i

    A_i holds one number per token and source (dynamic), or is a_i alone (static, which is
    DenseFormer). X_0 is the embedding; the last sum is the output. norm is an RMS norm without
    a scale. W₁ starts N(0, 1/D), W₂ at 0 and a_i at one for X_i and zero for the others.

    Paper: Xiao et al. 2025, MUDDFormer, arXiv 2502.12170, eq. 2-7
    Parameters: for n = 2 … L + 1 sources, static n, dynamic + K D + K n with K = ``hidden``·n
    Identity: at the start
    Kept for backward: per layer the state X_i and the weights

    Args:
        dynamic: weights depend on the token.
        hidden: K is this many times the number of sources; the paper's 4.
    """

    ways: ClassVar[int] = 1  # streams that each layer reads

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        dynamic: bool = True,
        hidden: Annotated[int, Field(gt=0)] = 4,
    ) -> None:
        super().__init__(depth, width)
        self.dynamic = dynamic
        self.shapes = [  # of each step: the sources and the sums of them; the output is one sum
            (sources, self.ways if sources <= depth else 1) for sources in range(2, depth + 2)
        ]
        last = [[0.0] * (n - 1) * ways + [1.0] * ways for n, ways in self.shapes]
        self.a = nn.Parameter(torch.tensor([value for row in last for value in row]))
        if dynamic:
            self.hidden = [hidden * n for n, _ in self.shapes]
            outputs = sum(k * n * w for k, (n, w) in zip(self.hidden, self.shapes, strict=True))
            self.W1 = nn.Parameter(torch.empty(sum(self.hidden), width).normal_(std=width**-0.5))
            self.W2 = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        states, inputs = [x], [x] * self.ways
        for layer, weigh in zip(layers, self._weights(), strict=True):
            x = inputs[0] + layer(*inputs)
            states.append(x)
            inputs = list(weighted_sum(weigh(x), states).unbind(0))
        return inputs[0]

    def _weights(self) -> Iterator[Weigh]:
        """Yield, for each step, what maps its state to the weights of every source.

        The weights of one source are (ways, …, 1), or (ways, 1, …) where they are static.
        """
        statics = self._statics()
        if not self.dynamic:
            yield from (partial(_static, a=a) for a in statics)
            return
        downs = self.W1.split(self.hidden)
        sizes = [k * n * w for k, (n, w) in zip(self.hidden, self.shapes, strict=True)]
        for down, up, k, a in zip(downs, self.W2.split(sizes), self.hidden, statics, strict=True):
            yield partial(_dynamic, down=down.mT, up=up.view(k, -1), a=a)

    def _statics(self) -> list[Tensor]:
        """Return a of each step, (sources, ways)."""
        parts = self.a.split([n * ways for n, ways in self.shapes])
        return [a.view(shape) for a, shape in zip(parts, self.shapes, strict=True)]

    @torch.no_grad()
    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """The static part a_ij; of several ways R, Q, K and V, of which the output has R."""
        names = ["a"] if self.ways == 1 else ["a_r", "a_q", "a_k", "a_v"]
        steps = dict(enumerate(self._statics(), 1))
        ways = {
            name: {i: a[:, way] for i, a in steps.items() if way < a.shape[1]}
            for way, name in enumerate(names)
        }
        return {name: triangle(self.depth, rows) for name, rows in ways.items() if rows}


def _static(x: Tensor, a: Tensor) -> Sequence[Tensor]:
    return a[(...,) + (None,) * x.ndim].unbind(0)


def _dynamic(x: Tensor, down: Tensor, up: Tensor, a: Tensor) -> Sequence[Tensor]:
    """Return GELU(norm(X) W₁) W₂ + a."""
    weights = F.gelu(project_normed(x, down)) @ up + a.flatten()
    return weights.unflatten(-1, a.shape).movedim((-2, -1), (0, 1))[..., None].unbind(0)


class MultiwayMuddFormer(MuddFormer):
    """MUDDFormer: queries, keys, values and the residual each read a sum of their own.

        X_{i+1} = f(R_i, Q_i, K_i, V_i) + R_i,   (R, Q, K, V)_i = Σ_{j≤i} A_ij·X_j
        A_i = GELU(norm(X_i) W₁) W₂ + a_i

    X_0 is read by all four before the first layer; after the last there is R alone, the output.
    Q, K and V have norms of their own (2D more parameters in each attention). The rest is as in
    :class:`MuddFormer`. An MLP that is a layer by itself reads Q and adds to R.

    Paper: Xiao et al. 2025, MUDDFormer, arXiv 2502.12170, eq. 8 and section 2.3
    Parameters: for n = 2 … L sources, static 4n, dynamic + K D + 4K n with K = ``hidden``·n;
        for the output, n = L + 1, static n, dynamic + K D + K n. Where MLPs are layers, the weights
        of their K and V are there but unused
    Identity: at the start
    Kept for backward: per layer the state X_i, its four sums and the weights
    """

    ways: ClassVar[int] = 4
    separate_inputs: ClassVar = True
