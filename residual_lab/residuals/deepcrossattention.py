"""DeepCrossAttention and the generalised residual networks (GRN) that it is made of."""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import nan
from operator import add
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from residual_lab.errors import ConfigError
from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_schedule import Schedule
from residual_lab.residuals.depth_sums import DepthSums
from residual_lab.residuals.depth_terms import Relu

Count = Annotated[int, Field(gt=0)]
Entry = range  # of the stack: the sum of these outputs; output 0 is the model input


def stack_of(t: int, k: int | None, model_input: bool, sum_of_middle: bool) -> list[Entry]:
    """Return the stack that layer t + 1 reads, the oldest entry first, made of outputs 0 … t."""
    oldest = 0 if k is None else max(0, t + 1 - k)
    first = int(model_input and oldest > 0)
    own = [range(0, 1)] if first else []
    middle = [range(first, oldest)] if oldest > first and sum_of_middle else []
    return [*own, *middle, *(range(j, j + 1) for j in range(oldest, t + 1))]


class GRN(Connection):
    """A learned mixture of the increments of all layers so far is what the next layer reads.

        g_t = Σ_j c_tj ⊙ f_j,  f_t = f(g_t),  f_0 the model input, j over the stack of layer t

            v1  c_tj = b_tj, a number
            v2  c_tj = b_tj, a vector of D
            v3  c_tj = b_tj + relu(w_t·f_j), the latter a number for each token

    The stack holds increments, not states: with b = 1 and w = 0 their sum is the residual stream.
    With ``k`` it is {model input, sum of the middle, last k increments}.

    Paper: DeepCrossAttention, arXiv 2502.06785, section 3; v1-v3 are table 7's
    Parameters: S_t entries in the stack of layer t (t without k; the model output reads the last,
        t = L + 1): v1 Σ S_t, v2 D·Σ S_t, v3 2D·Σ S_t (``per_grn``: D·Σ (S_t + 1)). These and a
        GRN for the first layer and for the output are what table 7's counts need.
    Identity: at the start, b = 1 and w = 0
    Kept for backward: per layer 1 activation, f_t; with k 1 more, the sum of the middle

    Args:
        version: v1, v2 or v3.
        relu: of v3: around the dynamic term (``term``, section 3), its derivative 1/2 at 0: with
            torch's own, 0, it could never leave w = 0; or around the whole coefficient,
            relu(b + w·f) (``sum``, which appendix H speaks of).
        dynamic_weights: of v3: one w_t for all entries (``per_grn``, section 3's D×1) or w_tj
            for each (``per_source``, D×t, without which no count of table 7 comes out).
        w_std: standard deviation of w at the start; the paper's w is 0.
        k: how many last increments are entries of their own; null: all.
        model_input: with k: the model input stays an entry of its own; else it goes into the sum
            when it leaves the last k, or is dropped with it.
        sum_of_middle: with k: what is neither goes into one entry, their sum; else it is dropped
            (table 9's stacks).
        first, final: there is a GRN for the first layer (it scales the model input), and for the
            output (figure 10), which else is the sum of the last stack.
    """

    identity: ClassVar = {"w_std": 0.0, "sum_of_middle": True}
    mixtures: ClassVar[int] = 1  # that a layer reads

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        version: Literal["v1", "v2", "v3"] = "v3",
        relu: Relu = "term",
        dynamic_weights: Literal["per_source", "per_grn"] = "per_source",
        w_std: Annotated[float, Field(ge=0)] = 0.0,
        k: Count | None = None,
        model_input: bool = True,
        sum_of_middle: bool = True,
        first: bool = True,
        final: bool = True,
    ) -> None:
        super().__init__(depth, width)
        if k is None and not (model_input and sum_of_middle):
            key = "sum_of_middle" if model_input else "model_input"
            raise ConfigError(f"residual.{key}=false: without k every output is an entry; set k")
        self.relu = relu
        self.stacks = [stack_of(t, k, model_input, sum_of_middle) for t in range(depth + 1)]
        ids: dict[Entry, int] = {}
        self.new: list[list[Entry]] = []  # entries that a stack is the first to have, f_t the last
        for stack in self.stacks:
            self.new.append([entry for entry in stack if entry not in ids])
            ids |= {entry: len(ids) + n for n, entry in enumerate(self.new[-1])}
        rows = [[ids[entry] for entry in stack] for stack in self.stacks]
        rows[0] = rows[0] if first else []
        rows[-1] = rows[-1] if final else []
        if not any(rows):
            raise ConfigError(
                f"residual.first=false, residual.final=false: no GRN is left at depth {depth}; "
                "keep one of them"
            )
        self.schedule = Schedule(
            rows,
            [self.mixtures] * depth + [1],
            [t for t, entries in enumerate(self.new) for _ in entries],
        )
        size = self.schedule.size
        self.b = nn.Parameter(torch.ones(size, 1 if version == "v1" else width))
        rows_of_w = size if dynamic_weights == "per_source" else self.schedule.sum_count
        self.w = nn.Parameter(torch.randn(rows_of_w, width) * w_std) if version == "v3" else None

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        grn = DepthSums(self.schedule, self.b, self.w, self.relu)
        g = grn.append(x)
        stack = {range(0, 1): x}
        for t, layer in enumerate(layers, 1):
            f = self.call(layer, g)
            stack = self.push(f, stack, t)
            g = grn.append(*(stack[entry] for entry in self.new[t]))
        return g[0] if self.schedule.rows[-1] else reduce(add, stack.values())

    def call(self, layer: Layer, g: list[Tensor]) -> Tensor:
        return layer(g[0])

    @torch.no_grad()
    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """b of each output, the mean and the standard deviation over features (figure 10).

        What is read as part of a sum has the weight of that sum. The output has one mixture, which
        is the last row of each.
        """
        names = ["b"] if self.mixtures == 1 else ["b_q", "b_k", "b_v"]
        biases = {name: self._b(mixture) for mixture, name in enumerate(names)}
        found = {name: b.mean(-1) for name, b in biases.items()}
        if self.b.shape[1] > 1:
            found |= {f"{name}_std": b.std(-1, correction=0) for name, b in biases.items()}
        return found

    def _b(self, mixture: int) -> Tensor:
        """Return b of every output in every sum, (L + 1, L + 1, D)."""
        found = self.b.new_full((self.depth + 1, self.depth + 1, self.b.shape[1]), nan)
        for t, (stack, row) in enumerate(zip(self.stacks, self.schedule.rows, strict=True)):
            for entry, source in zip(stack, row, strict=False):  # a row may be left out
                read = min(mixture, len(self.schedule.sums[t]) - 1)
                index = self.schedule.index(source, t, read)
                found[t, entry.start : entry.stop] = self.b[index]
        return found

    def push(self, f: Tensor, stack: dict[Entry, Tensor], t: int) -> dict[Entry, Tensor]:
        """Return the stack of step t: f is appended, what leaves the last k joins the sum."""
        after = {range(t, t + 1): f}
        for entry in self.stacks[t][:-1]:
            if entry not in stack:  # the sum of the middle has grown by one
                last = stack[entry[-1:]]
                after[entry] = stack[entry[:-1]] + last
            else:
                after[entry] = stack[entry]
        return after


class DCA(GRN):
    """DeepCrossAttention: three GRNs a layer, for its queries, keys and values.

        q, k, v = GRN_q(F), GRN_k(F), GRN_v(F);  f_t = a + mlp(q + a),  a = attention(q, k, v)

            F ─┬─ GRN_q ─┬─ norm ─┐        ┌──────────────┐
               ├─ GRN_k ─│─ norm ─┼─ attn ─┴─ + ─ norm ─ mlp ─ + ── f_t, appended to F
               └─ GRN_v ─│─ norm ─┘           │
                         └────────────────────┘

    F is the stack {f_0, …, f_{t−1}}; with ``k`` (k-DCA) it is {model input, sum of the middle,
    last k}. What the layers, the stack and the options are :class:`GRN` says. Where attentions and
    MLPs are layers of their own (``granularity: branch``), an MLP reads q alone.

    Paper: DeepCrossAttention, arXiv 2502.06785, section 3 and figure 4
    Parameters: v3, S_t entries in the stack of layer t: 2D·(3·Σ_{t ≤ L} S_t + S_{L+1}), and two
        more norms a layer (queries, keys and values have one each). Where MLPs are layers, the
        GRN_k and GRN_v before them are there but unused
    Identity: at the start, b = 1 and w = 0
    Kept for backward: per layer 3 activations: f_t and the inputs of two norms; with k 1 more
    """

    separate_inputs: ClassVar = True
    mixtures: ClassVar[int] = 3

    def call(self, layer: Layer, g: list[Tensor]) -> Tensor:
        q, k, v = g if len(g) == 3 else g * 3
        return layer(q, q, k, v)
