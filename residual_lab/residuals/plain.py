"""The residual connection of He et al. 2016."""

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from residual_lab.residuals.connection import Connection, Layer


class Plain(Connection):
    """The residual connection as it is: the increment is added.

        x' = x + f(x)

    Paper: He et al. 2016, Identity Mappings in Deep Residual Networks, arXiv 1603.05027, eq. 3
    Parameters: 0
    Identity: always
    """

    takes_relu: ClassVar = True

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        for layer in layers:
            x = self.after_sum(x + layer(x))
        return x
