"""Hyper-Connections against their equations, and against an independent package."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from residual_lab.models import Decoder
from residual_lab.residuals.hyper_connections import HyperConnections
from tests.residuals.conftest import jiggle, saved_units
from tests.residuals.reference import ToyLayer, check_against, count, toy_layers

Build = Callable[..., Decoder]


def token(connection: HyperConnections, k: int, H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A_m (n,), A_r (n, n) and B (n,) of layer k for one token's streams H (n, D)."""
    A_m, A_r, B = connection.A_m[k], connection.A_r[k], connection.B[k]
    if connection.dynamic:
        normed = F.layer_norm(H, H.shape[1:])
        if connection.norm == "rmsnorm":
            normed = torch.stack([h / torch.sqrt((h**2).mean() + 1e-6) for h in H])
        s_alpha, s_beta, W = connection.s_alpha[k], connection.s_beta[k], connection.W[k]
        act = torch.tanh if connection.bounded else lambda x: x
        A_m = A_m + s_alpha * act(normed @ W[:, 0])
        A_r = A_r + s_alpha * act(normed @ W[:, 1:-1])
        B = B + s_beta * act(normed @ W[:, -1])
    return A_m, A_r, B


@pytest.mark.parametrize(
    ("n", "dynamic", "bounded", "norm"),
    [
        (4, False, True, "rmsnorm"),
        (3, True, True, "rmsnorm"),
        (2, True, False, "rmsnorm"),
        (3, True, True, "layernorm"),
        (2, True, False, "layernorm"),
    ],
)
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_formula(n: int, dynamic: bool, bounded: bool, norm: str, reduce: str) -> None:
    """Token by token, the matrices of the paper: h = A_mᵀH, H' = Bᵀ f(h) + A_rᵀH."""
    options = {"n": n, "dynamic": dynamic, "bounded": bounded, "norm": norm, "reduce": reduce}
    connection, layers = HyperConnections(3, 6, **options), toy_layers(3)  # type: ignore[arg-type]

    def formula(x: Tensor) -> Tensor:
        outputs = []
        for h in x.flatten(0, -2):
            H = torch.stack([h] * n)
            for k, layer in enumerate(layers):
                A_m, A_r, B = token(connection, k, H)
                H = torch.outer(B, layer(A_m @ H)) + A_r.T @ H
            outputs.append(H.sum(0) if reduce == "sum" else H.mean(0))
        return torch.stack(outputs).view_as(x)

    assert count(connection) == 3 * (n * (n + 2) + (6 * (n + 2) + 2 if dynamic else 0))
    check_against(connection, layers, formula)


def test_initial_weights() -> None:
    connection = HyperConnections(6, 8, n=4)
    assert connection.A_m.argmax(1).tolist() == [0, 1, 2, 3, 0, 1]
    assert torch.equal(connection.A_m.sum(1), torch.ones(6))
    assert torch.equal(connection.A_r, torch.eye(4).expand(6, 4, 4))
    assert torch.equal(connection.B, torch.ones(6, 4))
    assert not connection.W.any() and (connection.s_alpha == 0.01).all()


@pytest.mark.parametrize(("n", "factor"), [(4, 2.0), (9, 3.0)])
@pytest.mark.parametrize("dynamic", ["false", "true"])
def test_output_projections_start_sqrt_n_times_as_large(
    n: int, factor: float, dynamic: str, tiny: Build
) -> None:
    """Against plain's weights of the same seed; all other weights are plain's."""
    where = "residual.granularity=branch"
    options = ("residual=hyper_connections", f"residual.n={n}", f"residual.dynamic={dynamic}")
    plain = tiny("residual=plain", where).state_dict()
    unscaled = tiny(*options).state_dict()
    scaled = tiny(*options, "residual.scale_outputs=true").state_dict()
    outputs = {key for key in plain if key.endswith(("attention.out.weight", "mlp.down.weight"))}
    assert len(outputs) == 2 * 4
    for key, weight in plain.items():
        expected = factor * weight if key in outputs else weight
        torch.testing.assert_close(scaled[key], expected)
        assert torch.equal(unscaled[key], weight)


def test_the_mixed_streams_are_used() -> None:
    """A public implementation threw the mixing's result away: then A_r changed nothing."""
    x, layers = torch.randn(2, 6, dtype=torch.float64), toy_layers(2)
    connection = HyperConnections(2, 6, n=2, dynamic=False).double()
    before = connection(x, layers)
    with torch.no_grad():
        connection.A_r[0] = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    f0 = layers[0](x)
    H = [f0, 2 * x + f0]  # stream 0 forgets x, stream 1 doubles it
    expected = sum(H) + 2 * layers[1](H[1])  # the second layer reads stream 1
    torch.testing.assert_close(connection(x, layers), expected)
    assert not torch.allclose(before, expected)


def test_published_counts() -> None:
    """Table of OLMo-1B, 16 blocks of width 2048: static ×4 adds 768, dynamic 394,048 to it."""
    static, dynamic = 32 * 4 * 6, 32 * (2048 * 6 + 2)
    assert count(HyperConnections(32, 2048, dynamic=False)) == static == 768
    assert count(HyperConnections(32, 2048)) == static + dynamic


def package_output(connection: HyperConnections, layers: list[ToyLayer], x: Tensor) -> Tensor:
    """What lucidrains' ``hyper-connections`` computes with this connection's weights.

    It has the RMS norm that is our default, not the paper's layer norm. It differs from ours in
    two ways that do not show here: that norm divides by the norm clamped at 1e-12 where we add
    1e-6 inside the root, and has a scale that starts at 1; and it draws a random stream to read
    first where no layer index is given.
    """
    package = pytest.importorskip("hyper_connections")
    init, expand, reduce = package.get_init_and_expand_reduce_stream_functions(
        connection.n, disable=False
    )
    streams = expand(x)
    for k, layer in enumerate(layers):
        module = init(dim=connection.width, branch=layer, layer_index=k).double()
        with torch.no_grad():
            module.static_alpha.copy_(torch.cat([connection.A_m[k][:, None], connection.A_r[k]], 1))
            module.static_beta.copy_(connection.B[k])
            if connection.dynamic:
                module.dynamic_alpha_fn.copy_(connection.W[k, :, :-1])
                module.dynamic_beta_fn.copy_(connection.W[k, :, -1])
                module.dynamic_alpha_scale.copy_(connection.s_alpha[k, 0])
                module.dynamic_beta_scale.copy_(connection.s_beta[k, 0])
        streams = module(streams)
    result: Tensor = reduce(streams)
    return result


@pytest.mark.parametrize("dynamic", [False, True])
def test_against_the_package(dynamic: bool) -> None:
    connection = HyperConnections(5, 6, n=4, dynamic=dynamic).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in connection.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    layers = list(toy_layers(5))
    x = torch.randn(2, 5, 6, generator=generator, dtype=torch.float64)
    expected = package_output(connection, layers, x)  # type: ignore[arg-type]
    torch.testing.assert_close(connection(x, layers), expected, rtol=1e-4, atol=1e-5)
    if not dynamic:  # no norm, no difference
        torch.testing.assert_close(connection(x, layers), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("norm", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize(("dynamic", "small"), [("false", 0), ("true", 5)])
def test_kept_for_backward(dynamic: str, small: int, norm: str, tiny: Build) -> None:
    """Per layer n streams and f; dynamic besides 5 times the n(n + 2) weights of each token."""
    options = ("residual=hyper_connections", f"residual.dynamic={dynamic}", "model.width=96")
    model = jiggle(tiny(*options, f"residual.norm={norm}"))
    plain = saved_units(tiny("residual=plain", "residual.granularity=branch", "model.width=96"))
    assert saved_units(model) <= plain + model.depth * (5 + small * 24 / model.config.width)
