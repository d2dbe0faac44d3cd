"""The MLP as one branch of a transformer's layer."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from residual_lab.config.models import TransformerConfig
from residual_lab.models.attention import Context, build_norm
from residual_lab.residuals.connection import EditValues

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "swiglu": F.silu,
}


class MLP(nn.Module):
    """Two linear maps with GELU or ReLU between them, or SwiGLU; returns its increment."""

    def __init__(self, config: TransformerConfig, *, pre_norm: bool) -> None:
        super().__init__()
        hidden = config.mlp_width
        assert hidden is not None
        self.gated = config.mlp == "swiglu"
        self.activation = ACTIVATIONS[config.mlp]
        self.dropout = config.dropout
        self.norm = build_norm(config) if pre_norm else nn.Identity()
        self.up = nn.Linear(config.width, hidden * (2 if self.gated else 1), bias=config.bias)
        self.down = nn.Linear(hidden, config.width, bias=config.bias)

    def forward(
        self,
        x_BTD: Tensor,
        q: Tensor | None = None,
        k: Tensor | None = None,
        v: Tensor | None = None,
        *,
        context: Context | None = None,
        edit_values: EditValues | None = None,
    ) -> Tensor:
        """Read ``q``, by default ``x``; an MLP has no keys or values."""
        hidden = self.up(self.norm(x_BTD if q is None else q))
        if self.gated:
            gate, hidden = hidden.chunk(2, -1)
            hidden = self.activation(gate) * hidden
        else:
            hidden = self.activation(hidden)
        increment = self.down(hidden)
        return F.dropout(increment, self.dropout, self.training) if self.dropout else increment
