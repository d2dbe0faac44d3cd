"""One term c ⊙ x of a weighted sum over depth, and its gradients, a part of the tokens at a time.

c is b, a number (1,) or a vector (D,); or it has a dynamic part, z = w·x of each token:
b + relu(z) where ``relu`` is ``term``, relu(b + z) where it is ``sum``. Tensors are (N, D), z is
(N, 1); everything is written in place.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

Relu = Literal["term", "sum"]
CHUNK = 2**19  # elements worked on at a time on a CPU: what one term touches stays in its caches


def working(x: Tensor) -> Tensor:
    """Return x in the type that sums are taken in."""
    return x.to(working_dtype(x.dtype))


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on the device of x.

    It does nothing where autocast is off: torch 2.9 cannot even switch it off on XLA.
    """
    device = "cpu" if x.is_meta else x.device.type
    if torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()


def chunks(x: Tensor) -> Sequence[Tensor]:
    """Return views (N, D) of the tokens of x, parts of a size that suits the device."""
    flat = x.reshape(-1, x.shape[-1])
    cached = x.device.type == "cpu" and not isinstance(x, FakeTensor)
    return flat.split(max(1, CHUNK // flat.shape[1])) if cached else [flat]


def project(x: Tensor, w: Tensor) -> Tensor:
    """Return w·x of each row of w (M, D) and each token of x: (M, N)."""
    with without_autocast(x):
        return working(w.to(x.dtype) @ x.reshape(-1, x.shape[-1]).mT)


def plain_coefficient(b: Tensor, z: Tensor | None, relu: Relu) -> Tensor:
    """Return c out of place; ``term`` has derivative 1/2 at 0, so that w may start at 0."""
    if z is None:
        return b
    if relu == "sum":
        return torch.relu(b + z)
    return b + torch.maximum(z, torch.zeros((), dtype=z.dtype, device=z.device))


def add_term(total: Tensor, x: Tensor, b: Tensor, z: Tensor | None, relu: Relu) -> None:
    """Add c ⊙ x to ``total``; ``z`` is already rectified where ``relu`` is ``term``."""
    if z is not None and relu == "sum":
        total.addcmul_(x, (b + z).relu_())
        return
    total.addcmul_(x, b)
    if z is not None:
        total.addcmul_(x, z)


def static_gradients(
    gradient: Tensor, x: Tensor, b: Tensor, d_x: Tensor, d_b: Tensor | None, scratch: Tensor
) -> None:
    """Add to ∂x and ∂b what one sum with a static weight gives them."""
    d_x.addcmul_(gradient, b)
    if d_b is None:
        return
    if len(b) == 1:
        d_b += torch.dot(gradient.flatten(), x.flatten())
    else:
        d_b += torch.mul(gradient, x, out=scratch).sum(0)


def dynamic_gradients(
    gradient: Tensor,
    x: Tensor,
    b: Tensor,
    z: Tensor,
    d_x: Tensor,
    d_b: Tensor | None,
    d_z: Tensor,
    scratch: Tensor,
    relu: Relu,
) -> None:
    """Add to ∂x and ∂b, and write ∂z (N,) of relu's result, or of z where it is ``sum``.

    ∂x lacks what z passes on; ``z`` is already rectified where ``relu`` is ``term``.
    """
    if relu == "term":
        d_x.addcmul_(gradient, b).addcmul_(gradient, z)
        torch.mul(gradient, x, out=scratch)
    else:
        c = (b + z).relu_()
        d_x.addcmul_(gradient, c)
        torch.mul(gradient, x, out=scratch)
        torch.ops.aten.threshold_backward(scratch, c, 0, grad_input=scratch)  # 0 where c is
    if d_b is not None:
        d_b += scratch.sum(0)
    torch.sum(scratch, 1, out=d_z)
