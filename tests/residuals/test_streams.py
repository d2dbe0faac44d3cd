"""Frac-connections, mHC and AltUp against their equations, and against independent packages."""

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from residual_lab.errors import ConfigError
from residual_lab.models import Decoder
from residual_lab.residuals.altup import AltUp
from residual_lab.residuals.frac_connections import FracConnections
from residual_lab.residuals.mhc import ManifoldHyperConnections, sinkhorn
from tests.residuals.conftest import jiggle, saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


def move(connection: nn.Module, scale: float = 0.3) -> None:
    """Move every parameter away from where it started."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in connection.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(scale * noise)


def tokenwise(step: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Apply ``step`` to each token's features by itself."""

    def formula(x: Tensor) -> Tensor:
        return torch.stack([step(token) for token in x.flatten(0, -2)]).view_as(x)

    return formula


def rms(x: Tensor) -> Tensor:
    return x / torch.sqrt((x**2).mean() + 1e-6)


@pytest.mark.parametrize(
    ("m", "dynamic", "bounded"),
    [(1, True, True), (2, True, False), (3, True, True), (3, False, True)],
)
def test_frac_connections(m: int, dynamic: bool, bounded: bool) -> None:
    connection = FracConnections(3, 6, m=m, dynamic=dynamic, bounded=bounded)
    layers = toy_layers(3)
    act = torch.tanh if bounded else (lambda y: y)

    def step(x: Tensor) -> Tensor:
        H = x.view(m, -1)
        for k, layer in enumerate(layers):
            Y, A, b = connection.Y[k], connection.A[k], connection.b[k]
            if dynamic:
                delta = act(torch.stack([rms(h) for h in H]) @ connection.W[k])
                Y = Y + connection.s_alpha[k] * delta[:, :m]
                A = A + connection.s_alpha[k] * delta[:, m : 2 * m]
                b = b + connection.s_beta[k] * delta[:, 2 * m]
            f = layer((Y.T @ H).flatten()).view(m, -1)
            H = A.T @ H + torch.diag(b) @ f
        return H.flatten()

    d = 6 // m
    assert count(connection) == 3 * (2 * m * m + m + (d * (2 * m + 1) + 2 if dynamic else 0))
    check_against(connection, layers, tokenwise(step))


def test_fractions_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match=r"residual\.m=4: must divide"):
        FracConnections(2, 6, m=4)


@pytest.mark.parametrize(("n", "logit"), [(3, 0.0), (4, -0.5), (64, -4.0)])
def test_other_streams_may_not_have_all_the_weight(n: int, logit: float) -> None:
    """(n − 1)·σ(l) = 1 at l = −ln(n − 2)."""
    limit = -math.log(n - 2)
    with pytest.raises(ConfigError, match=rf"other_logit={logit:g}: must be below {limit:.3g} "):
        ManifoldHyperConnections(2, 4, n=n, other_logit=logit)
    ManifoldHyperConnections(2, 4, n=n, other_logit=limit - 0.01)


def test_frac_connections_against_the_package() -> None:
    """Reading and mixing are the package's; three things of it are not the paper's.

    Its initial reading is the same single fraction for all m; its factor b exists for every pair
    of fractions (m × m, so each output fraction receives the sum of all of them); and its
    weights are used in the order (fraction, read or mix) although they are initialised in the
    order (read or mix, fraction), so that it does not start as the identity. The width
    connection is compared, with the weights in the order in which they are used.
    """
    package = pytest.importorskip("hyper_connections")
    m, width = 3, 6
    init, expand, _ = package.get_init_and_expand_reduce_stream_functions(1, num_fracs=m)
    module = init(dim=width, layer_index=0).double()
    alpha_start = module.static_alpha.detach()[:, :m]
    assert torch.equal(alpha_start, torch.eye(m, dtype=torch.float64)[:1].T.expand(m, m))
    assert module.dynamic_beta_fn.shape == (width // m, m)

    connection = FracConnections(1, width, m=m).double()
    move(connection)
    with torch.no_grad():
        order = torch.arange(2 * m).view(2, m).T.flatten()
        module.static_alpha.copy_(torch.cat([connection.Y[0], connection.A[0]], 1)[:, order])
        module.dynamic_alpha_fn.copy_(connection.W[0][:, order])
        module.dynamic_alpha_scale.copy_(connection.s_alpha[0, 0])
        connection.b.zero_()
        connection.s_beta.zero_()
    x = torch.randn(2, 5, width, dtype=torch.float64)
    seen = []

    def layer(y: Tensor) -> Tensor:
        seen.append(y)
        return y

    mixed = connection(x, [layer])  # b = 0: AᵀH alone
    expected_input, expected_mixed, _ = module.width_connection(expand(x))
    torch.testing.assert_close(seen[0], expected_input, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(mixed, expected_mixed, rtol=1e-4, atol=1e-5)


def slow_sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Divide columns, then rows, by their sums."""
    matrix = torch.exp(logits)
    for _ in range(iterations):
        matrix = matrix / matrix.sum(0, keepdim=True)
        matrix = matrix / matrix.sum(1, keepdim=True)
    return matrix


@pytest.mark.parametrize(("n", "iterations"), [(4, 20), (2, 3)])
def test_mhc(n: int, iterations: int) -> None:
    connection, layers = ManifoldHyperConnections(3, 6, n=n, iterations=iterations), toy_layers(3)

    def step(x: Tensor) -> Tensor:
        H = torch.stack([x] * n)
        for k, layer in enumerate(layers):
            p = rms(H.flatten()) @ connection.phi[k].flatten(0, 1)
            (a_pre, a_post, a_res), b = connection.alpha[k], connection.b[k]
            pre = 1 / (1 + torch.exp(-(a_pre * p[:n] + b[:n])))
            post = 2 / (1 + torch.exp(-(a_post * p[n : 2 * n] + b[n : 2 * n])))
            res = slow_sinkhorn((a_res * p[2 * n :] + b[2 * n :]).view(n, n), iterations)
            H = res @ H + torch.outer(post, layer(pre @ H))
        return H.sum(0)

    assert count(connection) == 3 * (n * 6 * (n * n + 2 * n) + n * n + 2 * n + 3)
    check_against(connection, layers, tokenwise(step))


def test_sinkhorn_is_doubly_stochastic() -> None:
    logits = torch.randn(4, 4, 7, generator=torch.Generator().manual_seed(0))
    matrices = sinkhorn(logits, 100)
    torch.testing.assert_close(matrices.sum(1), torch.ones(4, 7), rtol=0, atol=1e-6)
    torch.testing.assert_close(matrices.sum(0), torch.ones(4, 7), rtol=0, atol=1e-3)
    half = sinkhorn(logits.bfloat16(), 20)  # iterated in float32
    torch.testing.assert_close(
        half.float(), sinkhorn(logits.bfloat16().float(), 20), atol=4e-3, rtol=0
    )


def test_sinkhorn_has_its_own_gradient() -> None:
    logits = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 5), logits)
    torch.library.opcheck(torch.ops.residual_lab.sinkhorn.default, (logits, 5))
    huge = torch.tensor([[900.0, 0.0], [0.0, -900.0]], requires_grad=True)  # exp overflows
    assert torch.allclose(sinkhorn(huge, 20), torch.full((2, 2), 0.5))  # since 900 − 900 = 0 + 0


def test_every_logit_of_mhc_learns(tiny: Build, tokens_BT: Tensor) -> None:
    """At 0 and −8 with a temperature of 0.05 the off-diagonal logits of H_res never move."""
    model = tiny("residual=mhc")
    model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):  # streams that are equal have nothing to mix
        optimizer.step()
        optimizer.zero_grad()
        model.loss(tokens_BT[:, :-1], tokens_BT[:, 1:]).backward()
    gradient = model.connection.b.grad[:, 8:].view(-1, 4, 4)  # type: ignore[index, union-attr]
    off_diagonal = gradient[1:, ~torch.eye(4, dtype=torch.bool)]  # of layer 0: equal streams
    assert (off_diagonal.abs() > 1e-12).all()
    dead = torch.full((4, 4), -8.0).fill_diagonal_(0).div(0.05).double().requires_grad_()
    (slow_sinkhorn(dead, 20) * torch.randn(4, 4, dtype=torch.float64)).sum().backward()
    assert dead.grad is not None and dead.grad.abs().max() < 1e-30  # what the test would see


def test_mhc_starts_as_plain(tiny: Build, tokens_BT: Tensor) -> None:
    """As far as the logits of H_pre, rounded to float32, let it; its streams differ in use."""
    options = ("residual.granularity=branch", "residual=mhc", "residual.reduce=mean")
    plain = tiny("residual=plain", "residual.granularity=branch")(tokens_BT)
    torch.testing.assert_close(tiny(*options)(tokens_BT), plain, rtol=1e-5, atol=1e-9)
    connection = ManifoldHyperConnections(5, 6)
    pre = torch.sigmoid(connection.b[:, :4])
    torch.testing.assert_close(pre.sum(1), torch.ones(5))
    assert pre.argmax(1).tolist() == [0, 1, 2, 3, 0]
    assert not connection.b[:, 4:8].any()  # 2σ(0) = 1


def test_mhc_against_deepseek_v4() -> None:
    """Weights of a token against transformers' module; it adds 1e-6 here and there."""
    modeling = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    n, width = 4, 6
    config = SimpleNamespace(
        hc_mult=n, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6, hidden_size=width
    )
    module = modeling.DeepseekV4HyperConnection(config)
    connection = ManifoldHyperConnections(1, width, n=n, iterations=20)
    move(connection)
    streams = torch.randn(2, 5, n, width)
    with torch.no_grad():
        module.fn.copy_(connection.phi[0].flatten(0, 1).T)
        # its matrices are indexed [source, output]
        order = torch.cat([torch.arange(2 * n), 2 * n + torch.arange(n * n).view(n, n).T.flatten()])
        module.fn.copy_(module.fn[order])
        module.base.copy_(connection.b[0][order])
        module.scale.copy_(connection.alpha[0])
    post, comb, collapsed = module(streams)
    H = streams.movedim(2, 0)
    H_pre, H_post, H_res = connection._weights(
        H, connection.phi[0], connection.alpha[0], connection.b[0]
    )
    torch.testing.assert_close(H_post[..., 0].movedim(0, -1), post, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(H_res[..., 0].movedim((0, 1), (-2, -1)), comb, rtol=5e-3, atol=1e-3)
    read = (H_pre[:, 0] * H).sum(0)
    torch.testing.assert_close(read, collapsed, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("select", ["alternating", "same"])
@pytest.mark.parametrize("k", [2, 3])
def test_altup(k: int, select: str) -> None:
    """Predict, compute and correct, one after the other."""
    connection, layers = AltUp(4, 6, k=k, select=select), toy_layers(4)  # type: ignore[arg-type]

    def formula(x: Tensor) -> Tensor:
        blocks = [x] * k
        for index, layer in enumerate(layers):
            p, g = connection.p[index], connection.g[index]
            active = index % k if select == "alternating" else 0
            predicted = [sum(p[i, j] * blocks[j] for j in range(k)) for i in range(k)]
            computed = blocks[active] + layer(blocks[active])
            error = computed - predicted[active]
            blocks = [y + g[i] * error for i, y in enumerate(predicted)]
        return sum(blocks)

    assert count(connection) == 4 * (k * k + k)
    check_against(connection, layers, formula)


@pytest.mark.parametrize(
    ("name", "granularity", "more"),
    [("frac_connections", "branch", 4), ("mhc", "branch", 5), ("altup", "layer", 3)],
)
def test_kept_for_backward(name: str, granularity: str, more: float, tiny: Build) -> None:
    """Streams and f per layer; what each token says of the weights is small at real widths."""
    model = jiggle(tiny(f"residual={name}"))
    plain = saved_units(tiny("residual=plain", f"residual.granularity={granularity}"))
    small = {"frac_connections": 7 * 36, "mhc": 10 * 24, "altup": 0}[name] / model.config.width
    assert saved_units(model) <= plain + model.depth * (more + small)
