"""What training, measuring and the connections know of a model, whatever it computes."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from residual_lab.residuals import Connection


class Model(nn.Module):
    """Layers, and the ``connection`` that carries a stream through them.

    The connection is set after construction, so that it draws its weights from a stream of its
    own. The names of its parameters start with ``connection.``.
    """

    connection: Any  # a Connection; of a ResNet one for each stage
    layers: nn.ModuleList

    def connect(self, connections: Sequence[Connection]) -> None:
        """Take the connection of the layers; only some models have several stacks of them."""
        (self.connection,) = connections

    @property
    def units(self) -> list[nn.Module]:
        """The modules that the connection calls, each once, in order."""
        return list(self.layers)

    @property
    def depth(self) -> int:
        """How many increments the connection carries."""
        return len(self.units)

    def hidden(self, inputs: Tensor) -> Tensor:
        """Return the stream after the last layer, as the head reads it."""
        raise NotImplementedError

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of what :meth:`evaluate` returns, the loss first."""
        return ("loss",)

    def evaluate(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return what a validation or test batch measures, each a mean over its predictions."""
        return {"loss": self.loss(inputs, targets)}

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the predictions that ``targets`` asks for, a scalar."""
        raise NotImplementedError
