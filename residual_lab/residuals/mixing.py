"""Weighted sums of activations that keep nothing for backward which is alive anyway.

Autograd would keep both factors of each product ``weight * activation``. Most of those
activations are kept by somebody else (every layer's input by its norm), and the one that is
not, the increment f, can be recovered where only its inner product with the gradient is asked
for:  y = α·f + r  gives  ⟨∂y, f⟩ = (⟨∂y, y⟩ − ⟨∂y, r⟩) / α.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Weight = Tensor | None  # of shape (1,) or (D,); None is the number 1, not learned


def carry(
    increment: Tensor,
    alpha: Weight,
    sources: Sequence[Tensor],
    coefficients: Sequence[Weight],
    low_rank: tuple[Tensor, Tensor] | None = None,
    *,
    alpha_is_positive: bool = True,
    relu: bool = False,
) -> Tensor:
    """Return ``α·f + Σ_j c_j·x_j + z B``, differentiable once.

    The sum is of the first x_j's type, to which all else is cast: weights in float32 would
    otherwise make a stream in bfloat16, of convolutions under autocast, one in float32.

    Args:
        increment: f, of shape (…, D).
        alpha: α.
        sources: the x_j, each of f's shape.
        coefficients: the c_j.
        low_rank: z (…, R) and B (R, D), or None for no such term.
        alpha_is_positive: α cannot cross zero (it comes from a softmax or a sigmoid), so that
            backward may recover what it needs of f from the sum and f is not kept.
        relu: return the positive part of the sum. Where that is zero, so is the sum's gradient, and
            f is recovered from it as from the sum itself.
    """
    dtype = sources[0].dtype
    alpha, *coefficients = (w if w is None else w.to(dtype) for w in (alpha, *coefficients))
    if torch.compiler.is_compiling():  # the compiler fuses the plain expression
        total = carry_by_autograd(increment, alpha, sources, coefficients, low_rank)
        return torch.relu(total) if relu else total
    z, up = low_rank if low_rank is not None else (None, None)
    return _Carry.apply(alpha_is_positive, relu, increment, alpha, z, up, *sources, *coefficients)


def carry_by_autograd(
    increment: Tensor,
    alpha: Weight,
    sources: Sequence[Tensor],
    coefficients: Sequence[Weight],
    low_rank: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return what :func:`carry` returns, as the formula stands and with autograd's memory."""
    dtype = sources[0].dtype
    total = _times(increment.to(dtype), alpha)
    for coefficient, source in zip(coefficients, sources, strict=True):
        total = total + _times(source.to(dtype), coefficient)
    if low_rank is not None:
        z, up = low_rank
        total = total + (z @ up).to(dtype)
    return total


def weighted_sum(weights: Sequence[Tensor], sources: Sequence[Tensor]) -> Tensor:
    """Return Σ_j w_j·x_j, a source at a time: they are never stacked.

    Weights broadcast against sources: one number, one for each token, or those of several sums
    at once in a first dimension. The sum is of the sources' type, whatever that of the weights.
    Kept for backward: weights and sources, nothing of their size.
    """
    dtype = reduce(torch.promote_types, (source.dtype for source in sources))
    weights = [weight.to(dtype) for weight in weights]
    total = weights[0] * sources[0]
    for weight, source in zip(weights[1:], sources[1:], strict=True):
        if total.dtype == weight.dtype == source.dtype:  # addcmul does not promote
            total = torch.addcmul(total, weight, source)
        else:
            total = total + weight * source
    return total


class _Carry(torch.autograd.Function):
    """The sum of :func:`carry`, with its gradients written out."""

    @staticmethod
    def forward(
        ctx: Any,
        alpha_is_positive: bool,
        relu: bool,
        increment: Tensor,
        alpha: Weight,
        z: Tensor | None,
        up: Tensor | None,
        *sources_and_coefficients: Any,
    ) -> Tensor:
        count = len(sources_and_coefficients) // 2
        sources, coefficients = sources_and_coefficients[:count], sources_and_coefficients[count:]
        if alpha is None and increment.dtype == sources[0].dtype:  # in one pass, not two
            total = _plus(increment, sources[0], coefficients[0])
        else:
            total = _plus(_times(sources[0], coefficients[0]), increment, alpha)
        for source, coefficient in zip(sources[1:], coefficients[1:], strict=True):
            total = _plus(total, source, coefficient, in_place=True)
        if z is not None and up is not None:
            _add_product(total, z, up)
        if relu:
            total.relu_()
        ctx.recover = alpha_is_positive and total.dtype in (torch.float32, torch.float64)
        kept = (total if ctx.recover else increment) if ctx.needs_input_grad[3] else None
        learned = ctx.needs_input_grad[6 + count :]
        keeps_all = ctx.recover and kept is not None
        asked = [x if keeps_all or need else None for x, need in zip(sources, learned, strict=True)]
        positive = total if relu else None
        ctx.save_for_backward(alpha, z, up, kept, positive, *asked, *coefficients)
        ctx.increment_dtype = increment.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        alpha, z, up, kept, positive, *rest = ctx.saved_tensors
        if positive is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, positive, 0)
        count = len(rest) // 2
        sources, coefficients = rest[:count], rest[count:]
        d_z, d_up = _low_rank_gradients(gradient, z, up)
        inner = [
            None if x is None else _inner(gradient, x, alpha if c is None else c)
            for x, c in zip(sources, coefficients, strict=True)
        ]
        d_alpha = None
        if kept is not None:
            d_alpha = _inner(gradient, kept, alpha)
            if ctx.recover:
                for c, i in zip(coefficients, inner, strict=True):
                    assert i is not None
                    d_alpha = d_alpha - _times(i, c)
                if d_up is not None:
                    d_alpha = d_alpha - _reduce(d_up * up, alpha)
                d_alpha = d_alpha / alpha
        return (
            None,
            None,
            _times(gradient, alpha).to(ctx.increment_dtype),
            d_alpha,
            d_z,
            d_up,
            *(_times(gradient, c) for c in coefficients),
            *(i if c is not None else None for i, c in zip(inner, coefficients, strict=True)),
        )


def _times(x: Tensor, weight: Weight) -> Tensor:
    return x if weight is None else x * weight


def _plus(total: Tensor, x: Tensor, weight: Weight, in_place: bool = False) -> Tensor:
    """Return total + weight·x in one pass."""
    if weight is None:
        return total.add_(x) if in_place else total + x
    if total.dtype != x.dtype:  # addcmul does not promote
        x = x.to(total.dtype)
    return total.addcmul_(x, weight) if in_place else total.addcmul(x, weight)


def _add_product(total: Tensor, z: Tensor, up: Tensor) -> None:
    if z.dtype == up.dtype == total.dtype and total.is_contiguous():
        total.view(-1, total.shape[-1]).addmm_(z.flatten(0, -2), up)
    else:  # autocast's product is narrower
        total += z @ up


def _low_rank_gradients(
    gradient: Tensor, z: Tensor | None, up: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    if z is None or up is None:
        return None, None
    narrow = gradient.to(z.dtype)
    d_up = z.flatten(0, -2).mT @ narrow.flatten(0, -2)
    return narrow @ up.to(z.dtype).mT, d_up.to(up.dtype)


def _inner(gradient: Tensor, source: Tensor, like: Tensor) -> Tensor:
    """Return ⟨gradient, source⟩ over all dimensions (like: (1,)) or all but the last ((D,))."""
    if like.numel() > 1:
        return _reduce(gradient * source, like)
    product = torch.dot(gradient.flatten(), source.to(gradient.dtype).flatten())
    return product.to(like.dtype).reshape(like.shape)


def _reduce(product: Tensor, like: Tensor) -> Tensor:
    total = product.sum() if like.numel() == 1 else product.flatten(0, -2).sum(0)
    return total.to(like.dtype).reshape(like.shape)
