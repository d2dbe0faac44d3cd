"""What a residual connection is: it alone decides how increments are carried through depth."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

from torch import Tensor, nn
from torch.nn import functional as F

EditValues = Callable[[Tensor], Tensor]


class Layer(Protocol):
    """A block, or one of its two branches: it returns its increment and adds nothing to it."""

    def __call__(
        self,
        x: Tensor,
        q: Tensor | None = None,
        k: Tensor | None = None,
        v: Tensor | None = None,
        *,
        edit_values: EditValues | None = None,
    ) -> Tensor:
        """Return f for the stream ``x``; attention reads ``q``, ``k``, ``v``, by default ``x``.

        In a block ``x`` is what the attention's increment is added to before the MLP reads it.
        An MLP by itself reads ``q``, by default ``x``. ``edit_values`` maps the attention's
        projected values (batch, time, attention width) to those that it uses.
        """
        ...


class Connection(nn.Module):
    """Carries a stack of layers from the embedding to the output.

    A subclass is constructed as ``(depth, width, *, options…)``, with ``depth`` the number of
    layers it will be handed and typed keyword options, which are the keys of its YAML. Its
    parameters have at least one dimension (FSDP shards the first).
    """

    separate_inputs: ClassVar[bool] = False
    """Queries, keys and values differ, so each has a norm of its own."""

    edits_values: ClassVar[bool] = False
    """It passes ``edit_values`` to layers, so these must have attention."""

    pre_norm: ClassVar[bool] = True
    """Layers normalise their input; otherwise the connection does what norms there are."""

    takes_relu: ClassVar[bool] = False
    """It heeds :attr:`relu_after_sum`."""

    relu_after_sum: bool = False
    """Set by a model: a ReLU stands after each addition, as in the first ResNets."""

    layers_take_gain: bool = False
    """Set by a model: ``layer(x, gain=α)`` returns α·f without a pass over f, as its last operation
    is a norm with a scale and a shift. α is of shape (1,) or (D,)."""

    initial_gains: Mapping[str, float] = {}
    """Factors on the model's own initial weights where the method prescribes others: of every
    attention's ``values``, every MLP's ``mlp_inputs`` and the ``outputs`` of both."""

    identity: ClassVar[Mapping[str, Any] | None] = {}
    """Options at which a new connection equals ``plain``; None: there are none."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.depth = depth
        self.width = width

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        """Map the embedding ``x`` (…, width) to the output of the last layer, same shape."""
        raise NotImplementedError

    def after_sum(self, x: Tensor) -> Tensor:
        """What a sum becomes before it is handed on; a ReLU is done in place."""
        return F.relu_(x) if self.relu_after_sum else x

    def scaled_increment(
        self, layer: Layer, x: Tensor, alpha: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Return ``layer(x)`` and the weight that it lacks: None where the layer took α in."""
        if alpha is not None and self.layers_take_gain:
            return cast(Callable[..., Tensor], layer)(x, gain=alpha), None
        return layer(x), alpha

    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """Return the method's own weights as they act now, for pictures of a trained model.

        By name, for L layers: of each layer, (L,); of each layer and of the k things that it
        reads, (L, k); or of sums over depth, (L + 1, L + 1), where ``[i, j]`` is the weight of
        source j in what is read after i layers: by layer i + 1, in the last row by the output.
        Source 0 is the embedding, source j comes from layer j.

        Weights are within their bounds, vectors are their mean over the features, NaN is where
        there is no weight; of weights that depend on the token they are the static part.
        They are copies, outside of autograd. None: {}.
        """
        return {}
