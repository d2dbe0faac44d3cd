"""α, β and γ of LAuReL: what bounds hold, and where the weights start."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from residual_lab.errors import ConfigError
from residual_lab.models import Decoder
from residual_lab.residuals.laurel import Laurel
from residual_lab.residuals.laurel_weights import ResidualWeights, bound_gammas
from tests.residuals.laurel_reference import DEPTH, WIDTH


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


@pytest.mark.parametrize("missing", ["embedding", "drop"])
def test_softmax_gammas_start_equal_and_sum_to_one(missing: str) -> None:
    """1/k each; with ``drop`` the first layers read fewer: 1, then ½ each, then ⅓ each."""
    connection = Laurel(DEPTH, WIDTH, k=3, missing=missing, gamma_bound="softmax")  # type: ignore[arg-type]
    counts = [3] * DEPTH if missing == "embedding" else [1, 2, 3, 3, 3]
    for gammas, count in zip(connection._gammas(), counts, strict=True):
        torch.testing.assert_close(gammas, torch.full((count,), 1 / count))
    with torch.no_grad():
        connection.gamma.normal_(std=5)
    for gammas in connection._gammas():
        assert gammas.sum().item() == pytest.approx(1)  # type: ignore[union-attr]
        assert all(gamma >= 0 for gamma in gammas)


@pytest.mark.parametrize(
    ("low_rank", "gamma", "expected"),
    [("none", None, 0.0), ("none", -0.7, -0.7), ("shared", None, 0.5), ("per_lag", 0.9, 0.9)],
)
def test_tanh_gammas_start_where_asked(low_rank: str, gamma: float | None, expected: float) -> None:
    connection = Laurel(DEPTH, WIDTH, k=2, low_rank=low_rank, gamma=gamma, gamma_bound="tanh")  # type: ignore[arg-type]
    for gammas in connection._gammas():
        torch.testing.assert_close(gammas, torch.full((2,), expected))
    assert bound_gammas(torch.tensor([40.0, -40.0]), "tanh").tolist() == [1, -1]


@pytest.mark.parametrize(
    "options",
    [
        ("residual=laurel_pa", "residual.gamma_bound=tanh"),
        ("residual=laurel_rw+lr+pa", "residual.gamma_bound=tanh"),
        ("residual=laurel_rw+lr+pa", "residual.gamma_bound=softmax"),
        ("residual=laurel_rw+pa", "residual.every=2", "residual.offset=1"),
    ],
)
def test_identity_of_bounded_gammas(
    options: tuple[str, ...], tiny: Callable[..., Decoder], tokens_BT: Tensor
) -> None:
    """γ = tanh(0) = 0 where h is the identity; any γ where B = 0. Every γ or B has a gradient."""
    model = tiny(*options)
    expected = tiny("residual=plain")(tokens_BT)
    torch.testing.assert_close(model(tokens_BT), expected, rtol=1e-12, atol=1e-12)
    model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
    moving = model.connection.maps.up if "+lr" in options[0] else model.connection.gamma  # type: ignore[union-attr]
    assert moving.grad.abs().min() > 0  # type: ignore[union-attr]


def test_softmax_gammas_of_identity_maps_do_not_start_as_plain() -> None:
    """The mean of the activations is added: x' = f + x + (x + x₋₁)/2, and f = 0 says so."""
    x = torch.randn(2, 3, WIDTH)
    connection = Laurel(2, WIDTH, k=2, gamma_bound="softmax")
    nothing = [lambda x: torch.zeros_like(x)] * 2
    torch.testing.assert_close(connection(x, nothing), 2 * x + (2 * x + x) / 2)  # type: ignore[arg-type]
