"""MUDDFormer against its formula, token by token."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from residual_lab.models import Decoder
from residual_lab.residuals.muddformer import MuddFormer, MultiwayMuddFormer
from tests.residuals.conftest import saved_units
from tests.residuals.reference import check_against, count, toy_layers

Build = Callable[..., Decoder]
KINDS = [(MuddFormer, 1), (MultiwayMuddFormer, 4)]


@pytest.mark.parametrize(("kind", "ways"), KINDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_formula(kind: type[MuddFormer], ways: int, dynamic: bool) -> None:
    """Every step's maps cut out of the parameters by hand, every weight a scalar in a loop."""
    depth, width = 3, 6
    connection, layers = kind(depth, width, dynamic=dynamic), toy_layers(depth)

    def formula(x: Tensor) -> Tensor:
        states, streams = [x], [x] * ways
        a_at = w1_at = w2_at = 0
        for step, layer in enumerate(layers, 1):
            states.append(streams[0] + layer(*streams))
            sources, reads = step + 1, ways if step < depth else 1
            a = connection.a[a_at : a_at + sources * reads]
            a_at += len(a)
            weights = a.expand(*x.shape[:-1], -1)
            if dynamic:
                k = 4 * sources
                down = connection.W1[w1_at : w1_at + k]
                up = connection.W2[w2_at : w2_at + k * sources * reads].view(k, -1)
                w1_at, w2_at = w1_at + k, w2_at + up.numel()
                newest = states[-1]
                normed = newest / torch.sqrt((newest**2).mean(-1, keepdim=True) + 1e-6)
                weights = F.gelu(normed @ down.T) @ up + a
            streams = [
                sum(weights[..., j * reads + s, None] * states[j] for j in range(sources))
                for s in range(reads)
            ]
        return streams[0]

    check_against(connection, layers, formula)


@pytest.mark.parametrize("hidden", [1, 4])
def test_counts(hidden: int) -> None:
    depth, width = 5, 6
    steps = [(n, 4 if n <= depth else 1) for n in range(2, depth + 2)]
    static = sum(n * ways for n, ways in steps)
    dynamic = sum(hidden * n * width + hidden * n * n * ways for n, ways in steps)
    assert count(MultiwayMuddFormer(depth, width, dynamic=False)) == static
    assert count(MultiwayMuddFormer(depth, width, hidden=hidden)) == static + dynamic
    # one static way is DenseFormer: L (L + 3) / 2 weights
    assert count(MuddFormer(48, width, dynamic=False)) == 1224


def test_published_growth() -> None:
    """+0.23 % of parameters at 2.8B, 32 layers of width 2560 (the Pythia shape)."""
    added = count(MultiwayMuddFormer(32, 2560)) / (32 * 12 * 2560**2 + 2 * 50304 * 2560)
    assert added == pytest.approx(0.0023, abs=0.0002)


@pytest.mark.parametrize(("kind", "ways"), KINDS)
def test_initial_weights(kind: type[MuddFormer], ways: int) -> None:
    connection = kind(8, 512)
    assert not connection.W2.any()
    assert connection.W1.std().item() == pytest.approx(512**-0.5, rel=0.02)
    first = connection.a[: 2 * ways]
    assert first.tolist() == [0.0] * ways + [1.0] * ways


def test_queries_keys_and_values_are_separate(tiny: Build, tokens_BT: Tensor) -> None:
    """Each way's weights change the output by themselves."""
    model = tiny("residual=muddformer", "residual.dynamic=false")
    before = model(tokens_BT)
    for way in range(4):
        changed = tiny("residual=muddformer", "residual.dynamic=false")
        with torch.no_grad():
            changed.connection.a[way] += 1.0  # type: ignore[index]
        assert not torch.allclose(changed(tokens_BT), before)


def test_kept_for_backward(tiny: Build) -> None:
    """One way: X_i. Four: X_i, three more sums and the norms of K and V; and the weights."""
    plain = saved_units(tiny("residual=plain"))
    weights = sum(2 * n + 5 * 4 * n for n in range(2, 6)) / 24  # of width 24, what GELU keeps too
    one = saved_units(tiny("residual=muddformer_one_way"))
    assert one <= plain + 4 + weights
    assert saved_units(tiny("residual=muddformer")) <= plain + 4 * 10 + 2 * weights
