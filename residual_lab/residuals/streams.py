"""Several parallel streams in place of one: what the connections that have them share.

Streams are one tensor (n, …, D). Weights of a mix are (n, m, …): w[j, i] is how much of stream j
goes into output i, one number for all tokens or one for each, so they end in dimensions that
broadcast against (…, D).
"""

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from residual_lab.residuals.mixing import weighted_sum

Reduce = Literal["sum", "mean"]


def expand(x: Tensor, n: int) -> Tensor:
    """Return n streams that all are ``x``, without copying it."""
    return x.expand(n, *x.shape)


def reduce(streams: Tensor, how: Reduce) -> Tensor:
    """Return the sum or the mean of the streams."""
    return streams.sum(0) if how == "sum" else streams.mean(0)


def reduce_weights(n: int, how: Reduce, like: Tensor) -> Tensor:
    """Return the weight of each stream in :func:`reduce`, (n,)."""
    return like.new_full((n,), 1.0 if how == "sum" else 1 / n)


def static(weights: Tensor, dimensions: int) -> Tensor:
    """Let weights of (n, …) or (n, m, …) broadcast against activations of ``dimensions``."""
    return weights[(...,) + (None,) * dimensions]


def mix(
    weights: Tensor, streams: Tensor, write: Tensor | None = None, f: Tensor | None = None
) -> Tensor:
    """Return Σ_j w[j, i]·H[j] (+ b[i]·f[i]) for each output i, (m, …, D).

    ``write`` is b, (n, …), for as many outputs as streams; ``f`` is one tensor for all outputs,
    (…, D) or (1, …, D), or one for each, (n, …, D). Kept for backward: the streams, which are
    the state itself, f and weights.
    """
    if torch.compiler.is_compiling():  # the compiler fuses the plain expression
        total = weighted_sum(weights.unbind(0), streams.unbind(0))
        return total if write is None or f is None else total + write * f
    if f is not None and f.ndim < streams.ndim:
        f = f[None]
    result: Tensor = _Mix.apply(weights, streams, write, f)
    return result


class _Mix(torch.autograd.Function):
    """The sums of :func:`mix`; gradients are added in place, a stream at a time."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, streams: Tensor, write: Tensor | None, f: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(weights, streams, write, f)
        dtype = streams.dtype
        # contiguous whatever the weights are, so that maps of the streams need no copy
        total = streams.new_empty(weights.shape[1], *streams.shape[1:])
        torch.mul(weights[0].to(dtype), streams[0], out=total)
        for weight, stream in zip(weights[1:].to(dtype), streams[1:], strict=True):
            total.addcmul_(weight, stream)
        if write is not None and f is not None:
            total.addcmul_(write.to(dtype), f.to(dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        weights, streams, write, f = ctx.saved_tensors
        dtype = streams.dtype
        columns = weights.to(dtype).unbind(1)
        d_streams = torch.empty_like(streams, memory_format=torch.contiguous_format)
        torch.mul(columns[0], gradient[0], out=d_streams)
        for column, g in zip(columns[1:], gradient[1:], strict=True):
            d_streams.addcmul_(column, g)
        product = torch.empty_like(streams, memory_format=torch.contiguous_format)
        sums = [
            _reduce(streams, g[None], c, product) for g, c in zip(gradient, columns, strict=True)
        ]
        d_weights = torch.stack(sums, 1).to(weights.dtype)
        d_write = d_f = None
        if write is not None and f is not None:
            d_write = _reduce(gradient, f.to(dtype), write, product).to(write.dtype)
            d_f = write.to(dtype) * gradient if len(f) > 1 else _dot(write.to(dtype), gradient)
            d_f = d_f.to(f.dtype)
        return d_weights, d_streams, d_write, d_f


def _reduce(x: Tensor, y: Tensor, like: Tensor, product: Tensor) -> Tensor:
    """Return x·y summed to the shape of ``like``: (n, …, 1), for each token or for all.

    ``product`` is memory to work in, of the shape of x.
    """
    if like[0].numel() == 1 and len(y) == 1:
        return (x.flatten(1) @ y.flatten()).view(like.shape)
    return torch.mul(x, y, out=product).sum_to_size(like.shape)


def _dot(weights: Tensor, gradient: Tensor) -> Tensor:
    """Return Σ_i w_i·g_i, (1, …, D)."""
    total = weights[0] * gradient[0]
    for weight, g in zip(weights[1:], gradient[1:], strict=True):
        total.addcmul_(weight, g)
    return total[None]
