"""Dense connections: every layer reads all earlier ones."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from residual_lab.residuals.connection import Connection, Layer


class DenseNet(Connection):
    """Concatenate all earlier increments and project them back to the width.

        h_l = [X_0, …, X_l] W_l,   X_0 = x,   X_{l+1} = f(h_l);   y = h_L

    The concatenation is never made: its product with W_l is the sum of the X_j with D × D
    blocks of W_l. A layer adds no shortcut of its own. The output is one more projection.

    Paper: Huang et al. 2017, Densely Connected Convolutional Networks, arXiv 1608.06993, in the
        form for equal widths: layer l has (l + 1)D × D weights in place of transition layers
    Parameters: (L + 1)(L + 2)/2 · D²
    Identity: init = identity, since the sum of all increments is the residual stream
    Kept for backward: per layer 1 activation, f

    Args:
        init: of W_l: ``fan_in``, N(0, 1/((l + 1)D)), which keeps the variance of equal inputs,
            or ``identity``, all blocks I.
    """

    identity: ClassVar = {"init": "identity"}

    def __init__(
        self, depth: int, width: int, *, init: Literal["fan_in", "identity"] = "fan_in"
    ) -> None:
        super().__init__(depth, width)
        blocks = (depth + 1) * (depth + 2) // 2
        self.weight = nn.Parameter(torch.eye(width).repeat(blocks, 1, 1))
        if init == "fan_in":
            with torch.no_grad():
                for sources, weight in enumerate(self._rows(), 1):
                    weight.normal_(std=(sources * width) ** -0.5)

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        rows = iter(self._rows())
        sources = [x]
        for layer in layers:
            sources.append(layer(_project(sources, next(rows))))
        return _project(sources, next(rows))

    def _rows(self) -> Sequence[Tensor]:
        """Return W_l of each layer and of the output, (l + 1, D, D)."""
        return self.weight.split(list(range(1, self.depth + 2)))


def _project(sources: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return [X_0, …, X_l] W, block by block, in the type of X_0."""
    first, *others = zip(sources, weights.unbind(0), strict=True)
    total = (first[0] @ first[1]).to(sources[0].dtype)  # autocast's products are narrower
    for source, weight in others:
        total = total + source @ weight
    return total


class DenseNetSum(Connection):
    """Sum or average all earlier states in place of the last one.

        x_{l+1} = f(x_l) + c_l·Σ_{j≤l} x_j

    With increments in place of states it would be plain. ``sum``, c = 1, doubles the states with
    every layer, so that late increments vanish beside them and 16-bit floats overflow beyond a
    hundred or so; ``mean``, c_l = 1/(l + 1), does not.

    Paper: none that fixes it: DenseNet (arXiv 1608.06993) with sums for concatenations
    Parameters: 0
    Identity: none
    Kept for backward: nothing that plain does not keep

    Args:
        scale: ``mean`` or ``sum``, as above.
    """

    identity: ClassVar = None

    def __init__(self, depth: int, width: int, *, scale: Literal["mean", "sum"] = "mean") -> None:
        super().__init__(depth, width)
        self.scale = scale

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        total = x
        for count, layer in enumerate(layers, 1):
            factor = 1 / count if self.scale == "mean" else 1.0
            x = torch.add(layer(x), total, alpha=factor)
            total = total + x
        return x
