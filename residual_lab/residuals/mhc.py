"""mHC: hyper-connections whose mixing is doubly stochastic."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from residual_lab.errors import ConfigError
from residual_lab.residuals.connection import Connection, Layer
from residual_lab.residuals.depth_weights import unfold
from residual_lab.residuals.streams import Reduce, expand, mix, reduce, reduce_weights


class ManifoldHyperConnections(Connection):
    """Manifold-constrained hyper-connections.

        H' = H_res H + H_postᵀ f(H_pre H)
        H_pre = σ(α p + b),  H_post = 2σ(α p + b),  H_res = Sinkhorn(exp(α p + b)),
        p = norm(vec H) φ

    Each of the three has its own α, φ and b. Sinkhorn divides columns and then rows by their
    sums, ``iterations`` times, so that all entries are positive, rows sum to 1 exactly (each stream
    is a weighted mean of the old ones) and columns nearly (which keeps the streams' mean). norm is
    an RMS norm of all nD features of a token without a scale.

    The paper does not say how b and φ start. Here layer k reads stream k mod n and mixes little:
    a logit of ``other_logit`` stands where HC has a zero, H_post = 1 and φ = 0. While all
    streams are equal, that is plain. It must leave gradients alive: at −8 and a temperature of
    0.05, as a public implementation has it, the exponential is 1e-70 and the mixing never learns.

    Paper: Xie et al. 2025, mHC, arXiv 2512.24880, eq. 7-9
    Parameters: per layer nD(n² + 2n) + n² + 2n + 3
    Identity: at the start if the streams are averaged, to the float32 rounding of the logits
    Kept for backward: per layer n + 1 activations, the streams and f; Sinkhorn runs again

    Args:
        n: streams; the paper's 4.
        alpha: at the start; the paper's 0.01.
        iterations: of Sinkhorn; the paper's 20.
        other_logit: of the entries that are not the layer's own at the start.
        projection_std: of φ at the start, normal.
        reduce: how the streams become the output: ``sum``, as in HC, or ``mean``.
    """

    identity: ClassVar = None  # the rounding of logits is not that of sums

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        n: Annotated[int, Field(ge=2)] = 4,
        alpha: float = 0.01,
        iterations: Annotated[int, Field(gt=0)] = 20,
        other_logit: Annotated[float, Field(ge=-8, le=0)] = -4.0,
        projection_std: Annotated[float, Field(ge=0)] = 0.0,
        reduce: Reduce = "sum",
    ) -> None:
        super().__init__(depth, width)
        self.n, self.iterations, self.reduce = n, iterations, reduce
        small = 1 / (1 + math.exp(-other_logit))
        own = 1 - (n - 1) * small  # so that H_pre sums to 1
        if own <= 0:
            raise ConfigError(
                f"residual.other_logit={other_logit:g}: must be below {-math.log(n - 2):.3g} with "
                f"residual.n={n}, or the layer's own weight, 1 − {n - 1}·σ, is not positive"
            )
        pre = torch.full((depth, n), other_logit)
        pre[torch.arange(depth), torch.arange(depth) % n] = math.log(own / (1 - own))
        res = (other_logit * (1 - torch.eye(n))).flatten().repeat(depth, 1)
        self.b = nn.Parameter(torch.cat([pre, torch.zeros(depth, n), res], 1))
        self.phi = nn.Parameter(torch.zeros(depth, n, width, n * n + 2 * n))
        if projection_std:
            nn.init.normal_(self.phi, std=projection_std)
        self.alpha = nn.Parameter(torch.full((depth, 3), alpha))  # of pre, post and res

    def forward(self, x: Tensor, layers: Sequence[Layer]) -> Tensor:
        streams = expand(x, self.n)
        maps = zip(self.phi.unbind(0), self.alpha.unbind(0), self.b.unbind(0), strict=True)
        for layer, (phi, alpha, b) in zip(layers, maps, strict=True):
            H_pre, H_post, H_res = self._weights(streams, phi, alpha, b)
            streams = mix(H_res, streams, H_post, layer(mix(H_pre, streams)[0]))
        return reduce(streams, self.reduce)

    @torch.no_grad()
    def weights_over_depth(self) -> Mapping[str, Tensor]:
        """What the biases alone amount to: the dense connection that they unfold to."""
        n = self.n
        pre, post, res = self.b.split([n, n, n * n], 1)
        H_res = sinkhorn(res.T.unflatten(0, (n, n)), self.iterations)  # (n, n, L), to i from j
        output = reduce_weights(n, self.reduce, self.b)
        mixes = H_res.permute(2, 1, 0)
        return {"weights": unfold(torch.sigmoid(pre), mixes, 2 * torch.sigmoid(post), output)}

    def _weights(
        self, streams: Tensor, phi: Tensor, alpha: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return H_pre (n, 1, …, 1), H_post (n, …, 1) and H_resᵀ (n, n, …, 1)."""
        n = self.n
        tokens = streams.flatten(1, -2)
        p = torch.bmm(tokens, phi.to(tokens.dtype)).sum(0) * _inverse_rms(tokens)
        counts = torch.tensor([n, n, n * n], device=alpha.device)
        alphas = alpha.repeat_interleave(
            counts, output_size=n * n + 2 * n
        )  # meta tensors ask for it
        logits = torch.addcmul(b, alphas, p.to(b.dtype)).mT  # (n² + 2n, tokens)
        pre, post, res = logits.unflatten(1, streams.shape[1:-1])[..., None].split([n, n, n * n])
        H_res = sinkhorn(res.unflatten(0, (n, n)), self.iterations)
        return torch.sigmoid(pre)[:, None], 2 * torch.sigmoid(post), H_res.transpose(0, 1)


def _inverse_rms(tokens: Tensor, epsilon: float = 1e-6) -> Tensor:
    """Return 1/√(mean(x²) + ε) of each token over all its streams: (n, N, D) → (N, 1)."""
    return (tokens.square().mean((0, 2)) + epsilon).rsqrt()[:, None]


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Return the doubly stochastic matrices of exp(logits), matrices in the first two dimensions.

    Rows sum to 1, columns to 1 as far as ``iterations`` bring them; at least in float32. The
    logits alone are kept: backward goes through the iterations again.
    """
    wide = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return _sinkhorn(wide.contiguous(), iterations).to(logits.dtype)


def _exponential(logits: Tensor) -> Tensor:
    """Return exp(logits) with its columns scaled, as they will be anyway, to a largest entry of 1.

    No entry is so small that a row of such could not be divided by its sum.
    """
    return (logits - logits.amax(0, keepdim=True)).exp().clamp_min(1e-30)


# Operators of their own: a compiler that unrolled the iterations would take minutes.
@torch.library.custom_op("residual_lab::sinkhorn", mutates_args=())
def _sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Divide columns, then rows, by their sums."""
    matrix = _exponential(logits)
    for step in range(2 * iterations):
        matrix /= matrix.sum(step % 2, keepdim=True)
    return matrix


@torch.library.custom_op("residual_lab::sinkhorn_backward", mutates_args=())
def _sinkhorn_backward(gradient: Tensor, logits: Tensor, iterations: int) -> Tensor:
    """For y = m / Σm:  ∂m = (∂y − Σ ∂y·y) / Σm."""
    start = matrix = _exponential(logits)
    steps = []
    for step in range(2 * iterations):
        total = matrix.sum(step % 2, keepdim=True)
        matrix = matrix / total
        steps.append((step % 2, matrix, total))
    for dim, y, total in reversed(steps):
        gradient = (gradient - (gradient * y).sum(dim, keepdim=True)) / total
    return (gradient * start).contiguous()


@_sinkhorn.register_fake
def _(logits: Tensor, iterations: int) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@_sinkhorn_backward.register_fake
def _(gradient: Tensor, logits: Tensor, iterations: int) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
    logits, ctx.iterations = inputs
    ctx.save_for_backward(logits)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    (logits,) = ctx.saved_tensors
    return _sinkhorn_backward(gradient, logits, ctx.iterations), None


_sinkhorn.register_autograd(_backward, setup_context=_keep)
