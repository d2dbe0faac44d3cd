"""DenseFormer: learned weighted averages of the outputs of all layers so far, and its rivals."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from residual_lab.errors import ConfigError
from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_schedule import Schedule
from residual_lab.residuals.depth_sums import DepthSums
from residual_lab.residuals.depth_weights import triangle_of
from residual_lab.residuals.mixing import carry

Count = Annotated[int, Field(gt=0)]


class DepthWeightedAverages(Connection):
    """Sums of the raw outputs X_j, never of the sums Y_j: the part that the family shares.

    ``rows[i]`` are the j that Y_i reads; none: Y_i = X_i. α_ij starts at 1 for j = i and at
    ``others`` else; it is free: no softmax, and it may be negative. ``schedule.index(j, i)`` is
    where α_ij is stored.
    """

    def __init__(
        self, depth: int, width: int, rows: Sequence[Sequence[int]], others: float = 0.0
    ) -> None:
        super().__init__(depth, width)
        self.schedule = Schedule(rows)
        self.alpha = nn.Parameter(torch.full((self.schedule.size, 1), others))
        with torch.no_grad():
            for i, row in enumerate(rows):
                if row:
                    self.alpha[self.schedule.index(i, i)] = 1.0

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        average = DepthSums(self.schedule, self.alpha)
        [y] = average.append(x)  # Y_0 = X_0
        for layer in layers:
            [y] = average.append(y + layer(y))  # X_i = Y_{i−1} + f(Y_{i−1}), Y_i = Σ_j α_ij·X_j
        return y

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """α_ij, as the paper's figure 5."""
        return {"alpha": triangle_of(self.schedule, self.alpha.detach()[:, 0])}


class DenseFormer(DepthWeightedAverages):
    """Depth-weighted averages (DWA) after the layers: the k×p-DenseFormer.

        X_i = Y_{i−1} + f(Y_{i−1}),  Y_i = Σ_{j ≤ i, j ≡ i (mod k)} α_ij·X_j  if p divides i
                                     Y_i = X_i                                 else

            X_0 ─────┬───────────┐
             └─ f ─ X_1 ─ DWA ── │ ─┐
                     │     Y_1 ─ f ─ X_2 ─ DWA ─ Y_2 …

    These are the paper's sources. (Its published training code keeps the outputs of every p-th
    layer alone, dilates over those, and refuses depths that p does not divide.) X_0 is the
    embedding; with k > 1 only the sums with i ≡ 0 (mod k) read it.

    Paper: DenseFormer, arXiv 2402.02622, sections 3.1-3.3
    Parameters: Σ_{i ≤ L, p | i} (⌊i/k⌋ + 1); for 1×1 L(L + 3)/2
    Identity: at the start
    Kept for backward: 1 activation for each DWA: X_i beside Y_i

    Args:
        dilation: k.
        period: p.
    """

    def __init__(self, depth: int, width: int, *, dilation: Count = 1, period: Count = 1) -> None:
        if period > depth:
            raise ConfigError(f"residual.period={period}: at most the {depth} layers there are")
        rows = [
            list(range(i % dilation, i + 1, dilation)) if i and i % period == 0 else []
            for i in range(depth + 1)
        ]
        super().__init__(depth, width, rows)


class LastK(DepthWeightedAverages):
    """Depth-weighted averages of the last k outputs and the embedding, after every layer.

        X_i = Y_{i−1} + f(Y_{i−1}),  Y_i = α_i0·X_0 + Σ_{i−k < j ≤ i} α_ij·X_j

    Paper: DenseFormer, arXiv 2402.02622, section 4.2 and table 4 (k = 4)
    Parameters: Σ_{i ≤ L} (min(i, k) + 1)
    Identity: at the start
    Kept for backward: per layer 1 activation, X_i

    Args:
        k: how many outputs are read, the newest included; X_0 comes on top.
    """

    def __init__(self, depth: int, width: int, *, k: Count = 4) -> None:
        rows: list[list[int]] = [[]]
        rows += [[0, *range(max(1, i - k + 1), i + 1)] for i in range(1, depth + 1)]
        super().__init__(depth, width, rows)


class ConnectToLast(DepthWeightedAverages):
    """One depth-weighted average, of all outputs, after the last layer.

        X_i = X_{i−1} + f(X_{i−1}),  output Σ_{j ≤ L} α_j·X_j

    Paper: DenseFormer, arXiv 2402.02622, section 4.2 and table 4
    Parameters: L + 1
    Identity: at the start, others = 0
    Kept for backward: 1 activation, X_L

    Args:
        others: initial α_j of all but the last; the paper's averages start at 0, the published
            code of this one at 1e-4.
    """

    identity: ClassVar = {"others": 0.0}

    def __init__(self, depth: int, width: int, *, others: float = 0.0) -> None:
        rows: list[list[int]] = [[] for _ in range(depth)]
        rows.append(list(range(depth + 1)))
        super().__init__(depth, width, rows, others)


class SkipsWithGains(Connection):
    """A learned gain on the skip.

        x' = g·x + f(x)

    Paper: DenseFormer, arXiv 2402.02622, section 4.1 and table 1; its published code has a gain
        for each attention and MLP (``granularity: branch``)
    Parameters: 1 a layer, 2L where each attention and MLP is one
    Identity: at the start, g = 1
    Kept for backward: nothing more than plain keeps

    Args:
        gain: g at the start.
    """

    takes_relu: ClassVar = True
    identity: ClassVar = {"gain": 1.0}

    def __init__(self, depth: int, width: int, *, gain: float = 1.0) -> None:
        super().__init__(depth, width)
        self.gain = nn.Parameter(torch.full((depth, 1), gain))

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer, gain in zip(layers, self.gain.unbind(0), strict=True):
            x = carry(layer(x), None, [x], [gain], relu=self.relu_after_sum)
        return x

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        return {"gain": self.gain.detach()[:, 0].clone()}
