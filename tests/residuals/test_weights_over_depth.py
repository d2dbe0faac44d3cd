"""``weights_over_depth``: what a connection says of itself, against what it does to probes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from residual_lab.models import Decoder
from residual_lab.residuals import Connection, build_connection
from residual_lab.residuals.densenet import DenseNetSum
from tests.residuals.conftest import GRANULARITIES, NAMES, configuration, jiggle

Build = Callable[..., Decoder]
every = pytest.mark.parametrize("name", NAMES)
WITHOUT = {  # nothing learned, matrices alone, or weights that only tokens decide
    *("plain", "constant_scaling", "densenet_sum", "dropout_shortcut", "deepnorm"),
    *("densenet", "linear_shortcut", "laurel_lr", "laurel_gemma3n", "frac_connections"),
    *("attnres", "attnres_block", "dwatt", "value_residual"),
}
DEPTH = 5


def build(name: str, **options: Any) -> Connection:
    """A connection of as many features as there are sources, its weights away from the start."""
    residual = configuration(f"residual={name}").residual
    chosen = {**residual.options, **options}
    connection = build_connection(residual.connection, DEPTH, DEPTH + 1, chosen).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in connection.parameters():
            first = parameter[..., :1] if parameter.shape[-1] == DEPTH + 1 else parameter
            parameter += torch.randn(first.shape, generator=generator, dtype=torch.float64)
    return connection


def probed(connection: Connection, sources: str) -> Tensor:
    """Return what each layer and the output read of each source, (L + 1, L + 1).

    Source j is the unit vector e_j: ``increments`` are what layers return, ``states`` what they
    return and read.
    """
    units = torch.eye(DEPTH + 1, dtype=torch.float64)
    read: list[Tensor] = []

    def layer(x: Tensor, q: Tensor | None = None, *rest: Tensor, **options: Any) -> Tensor:
        read.append((x if q is None else q).reshape(-1))
        unit = units[len(read)].expand_as(x)
        return unit - read[-1] if sources == "states" else unit

    output = connection(units[0].view(1, 1, -1), [layer] * DEPTH)
    return torch.stack([*read, output.reshape(-1)]).detach()


@pytest.mark.parametrize(
    ("name", "options", "sources", "weight"),
    [
        ("denseformer", {}, "states", "alpha"),
        ("denseformer", {"dilation": 2, "period": 1}, "states", "alpha"),
        ("denseformer", {"dilation": 1, "period": 2}, "states", "alpha"),
        ("last_k", {"k": 2}, "states", "alpha"),
        ("connect_to_last", {}, "states", "alpha"),
        ("elc_bert", {}, "increments", "weights"),
        ("elc_bert", {"weighted_output": True}, "increments", "weights"),
        ("muddformer_one_way", {"dynamic": False}, "states", "a"),
        ("grn_v1", {}, "increments", "b"),
        ("grn_v1", {"k": 2}, "increments", "b"),
        ("grn_v1", {"k": 1, "model_input": False}, "increments", "b"),
        ("grn_v2", {}, "increments", "b"),
        ("dca", {"version": "v1"}, "increments", "b_q"),
        ("hyper_connections", {"dynamic": False}, "increments", "weights"),
        ("hyper_connections", {"dynamic": False, "reduce": "mean"}, "increments", "weights"),
        ("altup", {}, "increments", "weights"),
        ("altup", {"reduce": "mean", "select": "same"}, "increments", "weights"),
        ("mhc", {"alpha": 0.0}, "increments", "weights"),
    ],
)
def test_a_triangle_is_what_layers_read(
    name: str, options: dict[str, Any], sources: str, weight: str
) -> None:
    connection = build(name, **options)
    if name == "mhc":
        with torch.no_grad():
            connection.alpha.zero_()
    triangle = connection.weights_over_depth()[weight]
    there = ~triangle.isnan()
    assert there.sum() >= DEPTH + 1
    expected = probed(connection, sources)
    torch.testing.assert_close(triangle[there], expected[there], rtol=1e-6, atol=1e-8)
    reads_more = there.any(1, keepdim=True) & ~there
    torch.testing.assert_close(expected[reads_more], torch.zeros(int(reads_more.sum())).double())


@pytest.mark.parametrize("name", ["denseformer", "last_k", "connect_to_last"])
def test_the_identity_is_the_identity_matrix(name: str, tiny: Build) -> None:
    triangle = tiny(f"residual={name}").connection.weights_over_depth()["alpha"]
    there = ~triangle.isnan()
    assert torch.equal(triangle[there], torch.eye(5).double()[there])


def test_grn_biases_are_means_and_deviations(tiny: Build) -> None:
    """Over the features; the three mixtures apart, and one more for the output."""
    connection = jiggle(tiny("residual=dca")).connection
    found = connection.weights_over_depth()
    assert set(found) == {"b_q", "b_k", "b_v", "b_q_std", "b_k_std", "b_v_std"}
    schedule, b = connection.schedule, connection.b
    for output, name in enumerate("qkv"):
        row = b[schedule.index(1, 2, output)]
        torch.testing.assert_close(found[f"b_{name}"][2, 1], row.mean())
        torch.testing.assert_close(found[f"b_{name}_std"][2, 1], row.std(correction=0))
    last = torch.stack([b[schedule.index(source, 4)].mean() for source in range(5)])
    torch.testing.assert_close(found["b_q"][4], last)
    torch.testing.assert_close(found["b_v"][4], last)


def test_laurels_softmax_in_closed_form(tiny: Build) -> None:
    connection = tiny("residual=laurel_rw+pa", "residual.k=2").connection
    with torch.no_grad():
        connection.weights.logits[:, :, 0] = torch.tensor([[0.0, 1, 2, 3], [0.0, 0, 0, 0]])
        connection.gamma.copy_(torch.arange(8))
    found = connection.weights_over_depth()
    alpha = 2 / (1 + torch.exp(-torch.arange(4).double()))
    torch.testing.assert_close(found["alpha"], alpha)
    torch.testing.assert_close(found["beta"], 2 - alpha)
    torch.testing.assert_close(found["gamma"], torch.arange(8).double().view(4, 2))


def test_laurel_beside_some_layers_and_with_few_activations(tiny: Build) -> None:
    options = ("residual.every=2", "residual.offset=1", "residual.k=3", "residual.missing=drop")
    bounds = ("residual.gamma_bound=softmax", "residual.vector=true")
    connection = jiggle(tiny("residual=laurel_rw+pa", *options, *bounds)).connection
    found = connection.weights_over_depth()
    logits = connection.weights.logits
    alpha = (2 * logits[0].exp() / logits.exp().sum(0)).mean(-1)
    torch.testing.assert_close(found["alpha"][1::2], alpha.detach())
    assert found["alpha"][::2].isnan().all()
    gamma = found["gamma"]
    assert gamma.isnan().tolist() == [[True] * 3, [False, False, True], [True] * 3, [False] * 3]
    torch.testing.assert_close(gamma[[1, 3]].nansum(1), torch.ones(2).double())


def test_scalars_of_layers(tiny: Build) -> None:
    def weights(name: str, *options: str) -> tuple[Connection, dict[str, Tensor]]:
        connection = jiggle(tiny(f"residual={name}", *options)).connection
        return connection, dict(connection.weights_over_depth())

    gates, found = weights("residual_gates")
    torch.testing.assert_close(found["gate"], gates.k.relu()[:, 0].detach())
    rezero, found = weights("rezero", "residual.granularity=layer")
    assert torch.equal(found["alpha"], rezero.alpha.detach()[[0, 0, 1, 1], 0])
    scale, found = weights("layerscale")
    torch.testing.assert_close(found["lambda"], scale.scale.detach().mean(1))
    highway, found = weights("highway")
    torch.testing.assert_close(found["gate"], highway.gates.bias.sigmoid().mean(1).detach())
    skip, found = weights("input_skip")
    assert torch.equal(found["lambda_stream"], skip.weights.detach()[:, 0, 0])
    assert torch.equal(found["lambda_input"], skip.weights.detach()[:, 1, 0])
    unet, found = weights("unet_skips")
    assert found["w"][:2].isnan().all()
    assert torch.equal(found["w"][2:], unet.weights.detach()[:, 0])
    values, found = weights("value_residual", "residual.learn=true")
    assert torch.equal(found["lambda_first"][1:], values.weights.detach()[:, 0])
    assert torch.equal(found["lambda_own"][1:], values.weights.detach()[:, 1])


@every
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_shapes_without_gradients_and_aliases(name: str, granularity: str, tiny: Build) -> None:
    connection = jiggle(tiny(f"residual={name}", f"residual.granularity={granularity}")).connection
    before = {key: p.detach().clone() for key, p in connection.named_parameters()}
    found = connection.weights_over_depth()
    assert bool(found) == (name not in WITHOUT)
    depth = connection.depth
    for weights in found.values():
        assert weights.shape in {(depth,), (depth + 1, depth + 1)} or len(weights) == depth
        assert not weights.requires_grad
        assert weights.isfinite().any()
        weights.fill_(7.0)
    assert all(torch.equal(p, before[key]) for key, p in connection.named_parameters())


def test_a_method_without_weights_says_so() -> None:
    assert DenseNetSum(3, 4).weights_over_depth() == {}
