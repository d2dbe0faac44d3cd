"""LAuReL against the paper's equations, written out slowly, and against its printed counts."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from residual_lab import build_model, compose
from residual_lab.errors import ConfigError
from residual_lab.models import Decoder
from residual_lab.residuals import Layer
from residual_lab.residuals.laurel import Laurel, ResidualWeights
from residual_lab.residuals.mixing import carry, carry_by_autograd
from tests.residuals.conftest import saved_units

WIDTH, DEPTH, RANK = 6, 5, 2
LOW_RANK = ("none", "current", "shared", "per_lag")


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
    xs = [x]
    used = 0
    for i, layer in enumerate(layers):
        alpha = beta = torch.ones(1, dtype=torch.float64)
        if connection.weights is not None:
            alpha, beta = (side[i] for side in connection.weights())

        def normed(y: Tensor, i: int = i) -> Tensor:
            mean_square = (y**2).mean(-1, keepdim=True)
            return y / torch.sqrt(mean_square + 1e-6) * connection.scale[i]

        def h(lag: int, y: Tensor, i: int = i) -> Tensor:
            if low_rank in ("none", "current"):
                return y
            pair = lag if low_rank == "per_lag" else 0
            assert connection.maps is not None
            return y @ connection.maps.down[i, pair] @ connection.maps.up[i, pair]

        terms = []
        for lag in range(k):
            if i - lag < 0 and missing == "drop":
                continue
            y = xs[max(i - lag, 0)]
            terms.append(connection.gamma[used] * h(lag, normed(y) if norm == "input" else y))
            used += 1
        if low_rank == "current":
            assert connection.maps is not None
            y = normed(xs[i]) if norm == "input" else xs[i]
            terms.append(y @ connection.maps.down[i, 0] @ connection.maps.up[i, 0])
        g = xs[i]
        if terms:
            total = torch.stack(terms).sum(0)
            if norm == "output":
                g = (
                    g
                    + total
                    / torch.sqrt((total**2).mean(-1, keepdim=True) + torch.finfo(torch.float64).eps)
                    * connection.scale[i]
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


@pytest.mark.parametrize("norm", ["none", "input", "output"])
@pytest.mark.parametrize("missing", ["embedding", "drop"])
@pytest.mark.parametrize(("low_rank", "k"), list(product(LOW_RANK, (0, 1, 3))))
@pytest.mark.parametrize(("weights", "vector"), [(False, False), (True, False), (True, True)])
def test_equals_the_equations(
    norm: str, missing: str, low_rank: str, k: int, weights: bool, vector: bool
) -> None:
    """Outputs and all gradients equal the slow reference's, at random parameters."""
    options = {
        "norm": norm,
        "missing": missing,
        "low_rank": low_rank,
        "k": k,
        "residual_weights": weights,
        "vector": vector,
    }
    if (k == 0 and low_rank in ("shared", "per_lag")) or (
        norm != "none" and k == 0 and low_rank == "none"
    ):
        with pytest.raises(ConfigError):
            Laurel(DEPTH, WIDTH, **options)
        return
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


@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.parametrize("width", [1, WIDTH])
def test_carry_is_its_formula_with_right_gradients(positive: bool, width: int) -> None:
    """Both backward rules, keeping f and recovering ⟨∂y, f⟩, pass gradcheck."""
    double = {"dtype": torch.float64, "requires_grad": True}
    f, first, second = (torch.randn(2, 3, WIDTH, **double) for _ in range(3))  # type: ignore[arg-type]
    alpha = torch.rand(width, **double)  # type: ignore[arg-type]
    coefficient = torch.randn(width, **double)  # type: ignore[arg-type]
    z, up = torch.randn(2, 3, RANK, **double), torch.randn(RANK, WIDTH, **double)  # type: ignore[arg-type]

    def call(*tensors: Tensor) -> Tensor:
        f, alpha, first, second, coefficient, z, up = tensors
        return carry(
            f, alpha, [first, second], [coefficient, None], (z, up), alpha_is_positive=positive
        )

    inputs = (f, alpha, first, second, coefficient, z, up)
    expected = carry_by_autograd(f, alpha, [first, second], [coefficient, None], (z, up))
    torch.testing.assert_close(call(*inputs), expected, rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(call, inputs)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("residual=plain",), 157_204_992),
        (("residual=plain", "model.layers=28"), 179_231_232),
        (("residual=laurel_rw",), 157_205_040),
        (("residual=laurel_rw", "residual.bound=sigmoid"), 157_204_992 + 24),
        (("residual=laurel_rw", "residual.vector=true"), 157_204_992 + 24 * 2 * 768),
        (("residual=laurel_rw", "residual.bound=fixed"), 157_204_992),
        (("residual=laurel_lr",), 158_384_640),
        (("residual=laurel_lr", "residual.norm=input"), 158_403_072),
        (("residual=laurel_lr", "residual.norm=output"), 158_403_072),
        (("residual=laurel_pa",), 157_205_064),
        (("residual=laurel_pa", "residual.norm=input"), 157_223_496),
        (("residual=laurel_pa", "residual.low_rank=shared"), 158_384_712),
        (("residual=laurel_rw+lr", "residual.norm=output"), 158_403_120),
        (("residual=laurel_rw+lr+pa",), 160_744_056),
    ],
)
def test_parameter_counts_of_the_papers_model(overrides: tuple[str, ...], expected: int) -> None:
    """Section 3.1's reconstruction of table 5, to the parameter."""
    with torch.device("meta"):
        model = build_model(compose(["model=nanodo_157m", *overrides]))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize(
    ("bound", "total", "parameters"),
    [("2softmax", 2, 2), ("softmax", 1, 2), ("sigmoid", 1, 1), ("sigmoid_pair", None, 2)],
)
def test_bounds_hold_whatever_the_logits(bound: str, total: int | None, parameters: int) -> None:
    weights = ResidualWeights(DEPTH, 1, bound, None, None)
    assert sum(p.numel() for p in weights.parameters()) == parameters * DEPTH
    with torch.no_grad():
        weights.logits.copy_(30 * torch.randn(weights.logits.shape))
    alphas, betas = (torch.cat(list(side)) for side in weights())
    assert ((alphas >= 0) & (betas >= 0)).all()
    assert ((alphas <= (total or 1)) & (betas <= (total or 1))).all()
    if total is not None:
        torch.testing.assert_close(alphas + betas, torch.full((DEPTH,), float(total)))


@pytest.mark.parametrize(
    "bound", ["2softmax", "softmax", "sigmoid", "sigmoid_pair", "free", "fixed"]
)
def test_initial_values_over_depth(bound: str) -> None:
    """α runs from the first layer's value to the last one's, β follows from the bound."""
    weights = ResidualWeights(DEPTH, 1, bound, (0.9, 0.5), None)
    alphas, betas = (torch.cat(list(side)) for side in weights())
    torch.testing.assert_close(alphas, torch.linspace(0.9, 0.5, DEPTH))
    rest = {"2softmax": 2 - alphas, "softmax": 1 - alphas, "sigmoid": 1 - alphas}
    middle = torch.full((DEPTH,), 1.0 if bound == "free" else 0.5)
    torch.testing.assert_close(betas, rest.get(bound, middle))


@pytest.mark.parametrize(
    ("bound", "alpha", "beta"),
    [("softmax", 0.5, 0.6), ("2softmax", 2.0, None), ("sigmoid", 1.0, None)],
)
def test_unreachable_initial_values_are_refused(
    bound: str, alpha: float, beta: float | None
) -> None:
    with pytest.raises(ConfigError, match="residual"):
        ResidualWeights(DEPTH, 1, bound, alpha, beta)


def test_the_papers_initialisation_of_a() -> None:
    """Footnote 2: A[i, j] = 1/√(rD) where i mod r = j; then AᵀA = I/r² where r divides D."""
    connection = Laurel(2, 768, low_rank="current", rank=32)
    assert connection.maps is not None
    down = connection.maps.down[0, 0]
    torch.testing.assert_close(down.T @ down, torch.eye(32) / 32**2)
    assert down[33, 1].item() == pytest.approx((32 * 768) ** -0.5)
    assert not connection.maps.up.any()


def test_the_default_rank_is_the_papers_at_its_width() -> None:
    connection = Laurel(1, 768, low_rank="current")
    assert connection.maps is not None
    assert connection.maps.down.shape[-1] == 32


@pytest.mark.parametrize(
    ("overrides", "extra_per_layer"),
    [
        (("residual=laurel_rw",), 0.0),
        (("residual=laurel_rw", "residual.bound=fixed"), 0.0),
        (("residual=laurel_rw", "residual.bound=free"), 1.0),  # α may cross zero: f is kept
        (("residual=laurel_pa",), 0.0),
        (("residual=laurel_rw+pa",), 0.0),
        (("residual=laurel_lr", "residual.rank=2"), 2 / 24),  # x A
        (("residual=laurel_rw+lr", "residual.rank=2"), 2 / 24),
        (
            ("residual=laurel_rw+lr", "residual.rank=2", "residual.norm=input"),
            5 / 24,
        ),  # and its norm, 1/rms
    ],
)
def test_what_is_kept_for_backward(
    overrides: tuple[str, ...], extra_per_layer: float, tiny: Callable[..., Decoder]
) -> None:
    """In activations (B, T, D) beyond plain; a scalar per token is 1/24 of one here."""
    extra = saved_units(tiny(*overrides)) - saved_units(tiny("residual=plain"))
    assert extra == pytest.approx(4 * extra_per_layer, abs=0.06)
