"""LAuReL against the paper's equations, written out slowly, and against its printed counts."""

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor

from residual_lab import build_model, compose
from residual_lab.errors import ConfigError
from residual_lab.models import Decoder
from residual_lab.residuals.laurel import Laurel
from residual_lab.residuals.mixing import carry, carry_by_autograd
from tests.residuals.conftest import jiggle, saved_units
from tests.residuals.laurel_reference import DEPTH, RANK, WIDTH, check_against_the_equations

LOW_RANK = ("none", "current", "shared", "per_lag")
ATTENTIONS = ("residual.granularity=branch", "residual.every=2")


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
    check_against_the_equations(options)


@pytest.mark.parametrize("missing", ["embedding", "drop"])
@pytest.mark.parametrize("low_rank", LOW_RANK)
@pytest.mark.parametrize(("gamma_bound", "k"), [("free", 3), ("softmax", 3), ("tanh", 2)])
@pytest.mark.parametrize(("every", "offset"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_bounded_gammas_and_placement_equal_the_equations(
    missing: str, low_rank: str, gamma_bound: str, k: int, every: int, offset: int
) -> None:
    """Layers that have no LAuReL are plain, and their outputs are activations that PA reads."""
    options = {
        "missing": missing,
        "low_rank": low_rank,
        "gamma_bound": gamma_bound,
        "k": k,
        "every": every,
        "offset": offset,
        "residual_weights": True,
        "norm": "input" if gamma_bound == "softmax" else "none",
    }
    check_against_the_equations(options)


@pytest.mark.parametrize("offset", [0, 1])
def test_beside_attention_or_mlp_alone(
    offset: int, tiny: Callable[..., Decoder], tokens_BT: Tensor
) -> None:
    """Among branches every second one: x' = α·f + β·(x + x A B) around it, f + x elsewhere."""
    options = ("residual=laurel_rw+lr", "residual.granularity=branch", "residual.every=2")
    model = jiggle(tiny(*options, f"residual.offset={offset}"))
    calls: list[tuple[Tensor, Tensor]] = []
    for unit in model.units:
        unit.register_forward_hook(lambda _, inputs, f: calls.append((inputs[0], f)))
    model.norm.register_forward_hook(lambda _, inputs, f: calls.append((inputs[0], f)))
    model(tokens_BT)
    laurel = model.connection
    assert isinstance(laurel, Laurel) and laurel.weights is not None and laurel.maps is not None
    alphas, betas = laurel.weights()
    assert len(calls) == 9 and len(alphas) == 4
    for index, ((x, f), (after, _)) in enumerate(pairwise(calls)):
        expected = f + x
        if index % 2 == offset:
            block = index // 2
            low_rank = x @ laurel.maps.down[block, 0].mT @ laurel.maps.up[block, 0]
            expected = alphas[block] * f + betas[block] * (x + low_rank)
        torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"every": 2, "offset": 2}, "offset=2"),
        ({"every": 8, "offset": DEPTH}, f"offset={DEPTH}"),
        ({"gamma_bound": "tanh"}, "gamma_bound=tanh"),
        ({"gamma_bound": "softmax", "k": 1}, "gamma_bound=softmax"),
        ({"gamma_bound": "softmax", "k": 3, "gamma": 0.3}, "gamma=0.3"),
        ({"gamma_bound": "tanh", "k": 3, "gamma": 1.0}, "gamma=1.0"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"residual.{key}"):
        Laurel(DEPTH, WIDTH, **options)


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
        # beside the attentions alone: as many as beside whole blocks
        (("residual=laurel_rw+lr+pa", *ATTENTIONS), 160_744_056),
        (("residual=laurel_pa", "residual.gamma_bound=softmax", *ATTENTIONS), 157_205_064),
        (("residual=laurel_lr", "residual.norm=input", *ATTENTIONS), 158_403_072),
    ],
)
def test_parameter_counts_of_the_papers_model(overrides: tuple[str, ...], expected: int) -> None:
    """Section 3.1's reconstruction of table 5, to the parameter."""
    with torch.device("meta"):
        model = build_model(compose(["model=nanodo_157m", *overrides]))
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_the_papers_initialisation_of_a() -> None:
    """Footnote 2: A[i, j] = 1/√(rD) where i mod r = j; then AᵀA = I/r² where r divides D."""
    connection = Laurel(2, 768, low_rank="current", rank=32)
    assert connection.maps is not None
    down = connection.maps.down[0, 0].mT
    torch.testing.assert_close(down.T @ down, torch.eye(32) / 32**2)
    assert down[33, 1].item() == pytest.approx((32 * 768) ** -0.5)
    assert not connection.maps.up.any()


def test_the_default_rank_is_the_papers_at_its_width() -> None:
    connection = Laurel(1, 768, low_rank="current")
    assert connection.maps is not None
    assert connection.maps.down.shape[-2] == 32


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
