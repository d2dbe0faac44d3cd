"""What training, measuring and the connections know of a model, whatever it computes."""

from torch import Tensor, nn

from residual_lab.residuals import Connection


class Model(nn.Module):
    """Layers, and the ``connection`` that carries a stream through them.

    The connection is set after construction, so that it draws its weights from a stream of its
    own. The names of its parameters start with ``connection.``.
    """

    connection: Connection
    layers: nn.ModuleList

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

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the predictions that ``targets`` asks for, a scalar."""
        raise NotImplementedError
