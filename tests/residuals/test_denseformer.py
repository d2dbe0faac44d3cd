"""DenseFormer and its rivals against their formulas, the paper's tables, and the package."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from residual_lab import build_model
from residual_lab.config import Config
from residual_lab.errors import ConfigError
from residual_lab.models import Decoder
from residual_lab.residuals.denseformer import (
    ConnectToLast,
    DenseFormer,
    DepthWeightedAverages,
    LastK,
    SkipsWithGains,
)
from tests.residuals.conftest import configuration, saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]


def paper_sources(i: int, k: int, p: int) -> list[int]:
    """{X_j : j ≤ i, j ≡ i (mod k)} after every p-th block."""
    return [j for j in range(i + 1) if (i - j) % k == 0] if i and i % p == 0 else []


def weighted_sums(
    connection: DepthWeightedAverages, layers: nn.ModuleList, sources: Callable[[int], list[int]]
) -> Callable[[Tensor], Tensor]:
    """The formula as a list of outputs; α is stored source by source."""
    depth = len(layers)
    order = [(i, j) for j in range(depth + 1) for i in range(depth + 1) if j in sources(i)]
    assert len(order) == connection.alpha.numel()

    def formula(x: Tensor) -> Tensor:
        alpha = dict(zip(order, connection.alpha.flatten(), strict=True))
        outputs, y = [x], x
        for i, layer in enumerate(layers, 1):
            outputs.append(y + layer(y))
            row = sources(i)
            y = sum(alpha[i, j] * outputs[j] for j in row) if row else outputs[i]
        return y

    return formula


@pytest.mark.parametrize("p", [1, 2, 3, 5])
@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_denseformer(k: int, p: int) -> None:
    """Forward and all gradients, also where p does not divide the depth."""
    connection, layers = DenseFormer(7, 6, dilation=k, period=p), toy_layers(7)
    formula = weighted_sums(connection, layers, lambda i: paper_sources(i, k, p))
    check_against(connection, layers, formula)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_last_k(k: int) -> None:
    """X_0 is always read; the first rows have fewer outputs than k."""
    connection, layers = LastK(6, 6, k=k), toy_layers(6)

    def sources(i: int) -> list[int]:
        return sorted({0, *range(max(0, i - k + 1), i + 1)}) if i else []

    check_against(connection, layers, weighted_sums(connection, layers, sources))


def test_connect_to_last() -> None:
    connection, layers = ConnectToLast(5, 6, others=1e-4), toy_layers(5)
    torch.testing.assert_close(connection.alpha.flatten(), torch.tensor([1e-4] * 5 + [1.0]))
    sums = weighted_sums(connection, layers, lambda i: list(range(6)) if i == 5 else [])
    check_against(connection, layers, sums)


def test_skips_with_gains(tiny: Build) -> None:
    """A gain for each attention and MLP: 2L, as published."""
    connection, layers = SkipsWithGains(4, 6), toy_layers(4)

    def formula(x: Tensor) -> Tensor:
        for gain, layer in zip(connection.gain, layers, strict=True):
            x = gain * x + layer(x)
        return x

    check_against(connection, layers, formula)
    assert count(tiny("residual=skips_with_gains").connection) == 2 * 4


DEPTHS = (24, 48, 64, 72, 84, 90)


@pytest.mark.parametrize(
    ("k", "p", "counts"),
    [  # N(d, k, p) of the paper's formula
        (1, 1, (324, 1224, 2144, 2700, 3654, 4185)),
        (2, 1, (168, 624, 1088, 1368, 1848, 2115)),
        (4, 1, (90, 324, 560, 702, 945, 1080)),
        (8, 1, (51, 174, 296, 369, 494, 563)),
        (12, 1, (38, 124, 209, 258, 343, 391)),
        (4, 5, (15, 62, 105, 140, 180, 225)),
        (4, 20, (6, 17, 33, 33, 54, 54)),
    ],
)
def test_counts(k: int, p: int, counts: tuple[int, ...]) -> None:
    assert tuple(count(DenseFormer(d, 8, dilation=k, period=p)) for d in DEPTHS) == counts


def test_sparsity_of_table_4() -> None:
    """84 % of last-4, off the diagonal; 96 % of connect-to-last; 95 % of 4×5."""
    whole = 48 * 51 // 2
    assert count(LastK(48, 8, k=4)) == 2 + 3 + 4 + 45 * 5
    assert round(100 * (1 - (count(LastK(48, 8, k=4)) - 48) / (whole - 48))) == 84
    assert round(100 * (1 - count(ConnectToLast(48, 8)) / whole)) == 96
    assert round(100 * (1 - count(DenseFormer(48, 8, dilation=4, period=5)) / whole)) == 95


def test_sources_of_4x5() -> None:
    """The embedding is read after layers 20 and 40 alone; the last three layers are plain."""
    schedule = DenseFormer(48, 8, dilation=4, period=5).schedule
    rows = {i: row for i, row in enumerate(schedule.rows) if row}
    assert list(rows) == list(range(5, 46, 5))
    assert rows[5] == [1, 5] and rows[10] == [2, 6, 10] and rows[20] == [0, 4, 8, 12, 16, 20]
    assert [i for i, row in rows.items() if 0 in row] == [20, 40]


@pytest.mark.parametrize(
    ("depth", "plain"),
    [
        (48, 378_446_592),
        (64, 491_717_376),
        (72, 548_352_768),
        (84, 633_305_856),
        (90, 675_782_400),
    ],
)
def test_whole_models_of_table_1(depth: int, plain: int) -> None:
    model = (f"model.layers={depth}", "model.width=768", "model.heads=12", "model.norm=layernorm")
    overrides = (*model, "model.vocabulary=50304", "data.vocabulary=50304")
    with torch.device("meta"):
        counts = [
            count(build_model(configuration(*overrides, f"residual={name}")))
            for name in ("plain", "denseformer")
        ]
    assert counts == [plain, plain + depth * (depth + 3) // 2]


def test_equals_plain_bit_for_bit_at_the_start(tiny: Build, tokens_BT: Tensor) -> None:
    for name in ("denseformer", "denseformer_4x1", "denseformer_4x5", "last_k", "connect_to_last"):
        model, plain = (tiny(f"residual={n}").float() for n in (name, "plain"))
        assert torch.equal(model(tokens_BT), plain(tokens_BT)), name


def test_a_period_beyond_the_depth_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"residual\.period=5: at most the 4 layers"):
        DenseFormer(4, 8, period=5)


@pytest.mark.parametrize("layers", [4, 9])
def test_saved_activations(tiny: Build, layers: int) -> None:
    """At most one activation more than plain for each average."""
    where = f"model.layers={layers}"
    plain = saved_units(tiny("residual=plain", where))
    extra = {
        name: saved_units(tiny(f"residual={name}", where)) - plain
        for name in ("denseformer", "denseformer_4x1", "denseformer_4x5", "last_k")
    }
    assert max(extra["denseformer"], extra["denseformer_4x1"], extra["last_k"]) <= layers + 0.01
    assert extra["denseformer_4x5"] <= layers // 3 + 0.01
    assert saved_units(tiny("residual=connect_to_last", where)) - plain <= 1.01
    gains = saved_units(tiny("residual=skips_with_gains", where))
    assert gains - saved_units(tiny("residual=plain", where, "residual.granularity=branch")) <= 0.01


def test_a_backward_that_stops_half_way_leaves_nothing_behind() -> None:
    """A later backward through the same graph starts afresh."""
    connection, layers = DenseFormer(4, 6).double(), toy_layers(4)
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    y = connection(x, layers)
    expected = torch.autograd.grad(y.sum(), [x, connection.alpha], retain_graph=True)

    def stop(_: Tensor) -> None:
        raise RuntimeError("stop")

    handle = layers[1].maps.register_hook(stop)
    with pytest.raises(RuntimeError, match="stop"):
        y.sum().backward(retain_graph=True)
    handle.remove()
    for found, wanted in zip(
        torch.autograd.grad(y.sum(), [x, connection.alpha]), expected, strict=True
    ):
        torch.testing.assert_close(found, wanted)


def test_gradients_flow_where_the_weights_are_frozen() -> None:
    """``optim.connection_start_step`` freezes a connection at first."""
    connection, layers = DenseFormer(4, 6).double(), toy_layers(4)
    x = torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True)
    wanted = [x, *layers.parameters()]
    expected = torch.autograd.grad(connection(x, layers).sum(), wanted)
    connection.requires_grad_(False)
    for found, g in zip(
        torch.autograd.grad(connection(x, layers).sum(), wanted), expected, strict=True
    ):
        torch.testing.assert_close(found, g)


def test_published_package(tiny: Build) -> None:
    """The package's accumulators, written out: a list per residue class.

    It stores every output in buffer ``j mod k`` and, after block i (from 0) with p | i + 1, sums
    the whole buffer of (i + 1) mod k; ``alphas[i]`` has (i + 1 + k) // k weights.
    """
    k, p, depth = 2, 3, 8
    connection, layers = DenseFormer(depth, 6, dilation=k, period=p), toy_layers(depth)
    lengths = {i: (i + 1 + k) // k for i in range(depth) if (i + 1) % p == 0}
    assert sum(lengths.values()) == count(connection)

    def formula(x: Tensor) -> Tensor:
        buffers: list[list[Tensor]] = [[] for _ in range(k)]
        buffers[0].append(x)
        for i, layer in enumerate(layers):
            x = x + layer(x)
            buffer = buffers[(i + 1) % k]
            buffer.append(x)
            if i in lengths:
                first = (i + 1) % k
                places = [connection.schedule.index(j, i + 1) for j in range(first, i + 2, k)]
                assert len(places) == lengths[i] == len(buffer)
                x = torch.tensordot(connection.alpha[places, 0], torch.stack(buffer), 1)
        return x

    check_against(connection, layers, formula)


def test_configurations_of_the_presets() -> None:
    def options(name: str) -> dict[str, int]:
        config: Config = configuration("model.layers=6", f"residual={name}")
        return config.residual.options

    assert options("denseformer") == {"dilation": 1, "period": 1}
    assert options("denseformer_4x1") == {"dilation": 4, "period": 1}
