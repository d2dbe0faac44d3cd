"""LAuReL's equations, written out slowly, and the comparison of the connection with them."""

from typing import Any

import torch
from torch import Tensor

from residual_lab.residuals import Layer
from residual_lab.residuals.laurel import Laurel

WIDTH, DEPTH, RANK = 6, 5, 2


def toy_layers() -> list[Layer]:
    """Non-linear maps (2, 3, WIDTH) → same, different in each layer."""
    generator = torch.Generator().manual_seed(3)
    maps = torch.randn(DEPTH, WIDTH, WIDTH, generator=generator, dtype=torch.float64)
    return [lambda x, q=None, k=None, v=None, w=w: torch.tanh(x @ w) for w in maps]


def reference(
    connection: Laurel, x: Tensor, layers: list[Layer], options: dict[str, Any]
) -> Tensor:
    """x_{i+1} = α_i f(x_i) + β_i (x_i + Σ_j γ_ij h_ij(x_{i−j})), eq. 1-6, term by term."""
    k, low_rank = options.get("k", 0), options.get("low_rank", "none")
    missing, norm = options.get("missing", "embedding"), options.get("norm", "none")
    every, offset = options.get("every", 1), options.get("offset", 0)
    xs = [x]
    used = 0
    for i, layer in enumerate(layers):
        if i % every != offset:
            xs.append(layer(xs[i]) + xs[i])
            continue
        place = (i - offset) // every
        alpha = beta = torch.ones(1, dtype=torch.float64)
        if connection.weights is not None:
            alpha, beta = (side[place] for side in connection.weights())

        def normed(y: Tensor, place: int = place) -> Tensor:
            mean_square = (y**2).mean(-1, keepdim=True)
            return y / torch.sqrt(mean_square + 1e-6) * connection.scale[place]

        def h(lag: int, y: Tensor, place: int = place) -> Tensor:
            if low_rank in ("none", "current"):
                return y
            pair = lag if low_rank == "per_lag" else 0
            assert connection.maps is not None
            return y @ connection.maps.down[place, pair].mT @ connection.maps.up[place, pair]

        terms = []
        lags = [lag for lag in range(k) if i - lag >= 0 or missing == "embedding"]
        gammas = connection.gamma[used : used + len(lags)] if k else []
        if options.get("gamma_bound") == "softmax":
            gammas = [g.exp() / sum(other.exp() for other in gammas) for g in gammas]
        elif options.get("gamma_bound") == "tanh":
            gammas = [(g.exp() - (-g).exp()) / (g.exp() + (-g).exp()) for g in gammas]
        for lag, gamma in zip(lags, gammas, strict=True):
            y = xs[max(i - lag, 0)]
            terms.append(gamma * h(lag, normed(y) if norm == "input" else y))
        used += len(lags)
        if low_rank == "current":
            assert connection.maps is not None
            y = normed(xs[i]) if norm == "input" else xs[i]
            terms.append(y @ connection.maps.down[place, 0].mT @ connection.maps.up[place, 0])
        g = xs[i]
        if terms:
            total = torch.stack(terms).sum(0)
            if norm == "output":
                g = (
                    g
                    + total
                    / torch.sqrt((total**2).mean(-1, keepdim=True) + torch.finfo(torch.float64).eps)
                    * connection.scale[place]
                )
            else:
                g = g + total
        xs.append(alpha * layer(xs[i]) + beta * g)
    return xs[-1]


def random_laurel(options: dict[str, Any]) -> Laurel:
    connection = Laurel(DEPTH, WIDTH, rank=RANK, **options).double()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in connection.parameters():
            parameter += 0.5 * torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            )
    return connection


def check_against_the_equations(options: dict[str, Any]) -> None:
    """Compare output and all gradients with the slow reference's, at random parameters."""
    connection, layers = random_laurel(options), toy_layers()
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(2, 3, WIDTH, dtype=torch.float64)
    inputs = [x, *connection.parameters()]
    found = connection(x, layers)
    expected = reference(connection, x, layers, options)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(found, inputs, probe, allow_unused=True),
        torch.autograd.grad(expected, inputs, probe, allow_unused=True),
        strict=True,
    ):
        torch.testing.assert_close(
            torch.zeros(()) if one is None else one,
            torch.zeros(()) if other is None else other,
            rtol=1e-8,
            atol=1e-10,
        )
