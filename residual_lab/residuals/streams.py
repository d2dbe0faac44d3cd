"""Several parallel streams in place of one: what the connections that have them share.

Streams are one tensor (n, …, D). Weights of a mix are (n, m, …): w[j, i] is how much of stream j
goes into output i, one number for all tokens or one for each, so they end in dimensions that
broadcast against (…, D).
"""

from typing import Literal

from torch import Tensor

from residual_lab.residuals.mixing import weighted_sum

Reduce = Literal["sum", "mean"]


def expand(x: Tensor, n: int) -> Tensor:
    """Return n streams that all are ``x``, without copying it."""
    return x.expand(n, *x.shape)


def reduce(streams: Tensor, how: Reduce) -> Tensor:
    """Return the sum or the mean of the streams."""
    return streams.sum(0) if how == "sum" else streams.mean(0)


def mix(weights: Tensor, streams: Tensor) -> Tensor:
    """Return Σ_j w[j, i]·H[j] for each output i, (m, …, D).

    Kept for backward: the streams, which are the state itself, and the weights.
    """
    return weighted_sum(weights.unbind(0), streams.unbind(0))


def static(weights: Tensor, dimensions: int) -> Tensor:
    """Let weights of (n, …) or (n, m, …) broadcast against activations of ``dimensions``."""
    return weights[(...,) + (None,) * dimensions]
