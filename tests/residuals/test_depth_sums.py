"""Sums over depth with written-out, late gradients against plain sums by autograd."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from residual_lab.residuals import depth_terms
from residual_lab.residuals.depth_schedule import Schedule
from residual_lab.residuals.depth_sums import DepthSums

KINDS = ("number", "vector", "per_source term", "per_source sum", "per_grn term", "per_grn sum")
ROWS = [[0], [0, 1], [], [0, 1, 3], [3, 4]]
OUTPUTS = [2, 2, 2, 1, 3]
WIDTH = 3


def parameters(kind: str, schedule: Schedule) -> tuple[Tensor, Tensor | None, str]:
    generator = torch.Generator().manual_seed(5)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)

    b = draw(schedule.size, 1 if kind == "number" else WIDTH)
    if kind in ("number", "vector"):
        return b, None, "term"
    where, relu = kind.split()
    return b, draw(schedule.size if where == "per_source" else 8, WIDTH), relu


def reference(b: Tensor, w: Tensor | None, relu: str, x: Tensor) -> Tensor:
    """The formula with a list of sources; weights lie source by source, then step, then output."""
    readers = [
        (j, i, o) for j in range(5) for i in range(5) if j in ROWS[i] for o in range(OUTPUTS[i])
    ]
    sums = [(i, o) for i in range(5) if ROWS[i] for o in range(OUTPUTS[i])]
    sources = [x]
    for i, row in enumerate(ROWS):
        outputs = []
        for o in range(OUTPUTS[i] if row else 0):
            total = torch.zeros_like(x)
            for j in row:
                n = readers.index((j, i, o))
                c = b[n]
                if w is not None:
                    z = sources[j] @ w[n if len(w) == len(b) else sums.index((i, o))]
                    z = z[..., None]
                    c = c + z.clamp(min=0) if relu == "term" else (c + z).clamp(min=0)
                total = total + c * sources[j]
            outputs.append(total)
        sources.append(mix(outputs or [sources[-1]]))
    return sources[-1]


def mix(outputs: Sequence[Tensor]) -> Tensor:
    return sum(torch.sin((n + 1) * y) for n, y in enumerate(outputs))


def run(schedule: Schedule, b: Tensor, w: Tensor | None, relu: str, x: Tensor) -> Tensor:
    sums = DepthSums(schedule, b, w, relu)
    for _ in ROWS:
        x = mix(sums.append(x))
    return x


@pytest.mark.parametrize("chunk", [2**19, 2 * WIDTH])
@pytest.mark.parametrize("kind", KINDS)
def test_against_plain_sums(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, gradients, and gradcheck; the tokens whole and in parts."""
    monkeypatch.setattr(depth_terms, "CHUNK", chunk)
    schedule = Schedule(ROWS, OUTPUTS)
    b, w, relu = parameters(kind, schedule)
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    inputs = [x, b] if w is None else [x, b, w]
    found, expected = run(schedule, b, w, relu, x), reference(b, w, relu, x)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    with monkeypatch.context() as compiling:
        compiling.setattr(torch.compiler, "is_compiling", lambda: True)
        plain = run(schedule, b, w, relu, x)
    torch.testing.assert_close(plain, expected, rtol=1e-11, atol=1e-12)
    weight = torch.randn_like(x)
    pairs = zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    )
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)
    small = x.detach()[:1, :2].requires_grad_()

    def call(x: Tensor, b: Tensor, w: Tensor | None = None) -> Tensor:
        return run(schedule, b, w, relu, x)

    assert torch.autograd.gradcheck(call, [small, *inputs[1:]])


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_not_contiguous(kind: str) -> None:
    """Sums and gradients are written through views, which such a stream's layout has none of."""
    schedule = Schedule(ROWS, OUTPUTS)
    b, w, relu = parameters(kind, schedule)
    strange = torch.randn(4, 2, WIDTH, dtype=torch.float64).transpose(0, 1).requires_grad_()
    straight = strange.detach().contiguous().requires_grad_()
    assert not strange.is_contiguous()
    for own in (strange, straight):
        run(schedule, b, w, relu, own).square().sum().backward()
    torch.testing.assert_close(strange.grad, straight.grad)
    torch.testing.assert_close(
        run(schedule, b, w, relu, strange), reference(b, w, relu, straight), rtol=1e-12, atol=1e-12
    )


def test_the_derivative_of_relu_at_zero_is_a_half() -> None:
    """With torch's own, 0, weights w that start at zero could never leave it."""
    x = torch.randn(4, WIDTH, dtype=torch.float64)
    b = torch.ones(1, WIDTH, dtype=torch.float64)
    w = torch.zeros(1, WIDTH, dtype=torch.float64, requires_grad=True)
    [y] = DepthSums(Schedule([[0]]), b, w).append(x)
    y.sum().backward()
    torch.testing.assert_close(w.grad, 0.5 * (x.sum(-1) @ x)[None])


def test_bfloat16_is_summed_in_float32() -> None:
    """What 40 sources add up to is rounded once."""
    xs = [torch.randn(64, 8).bfloat16() for _ in range(40)]
    b = torch.randn(40, 1).bfloat16()
    sums = DepthSums(Schedule([[] for _ in range(39)] + [list(range(40))]), b)
    for x in xs:
        [y] = sums.append(x)
    exact = sum(x.double() * w for x, w in zip(xs, b.double(), strict=True))
    assert y.dtype == torch.bfloat16
    assert (
        torch.equal(y, exact.bfloat16())
        or (y.double() - exact).abs().max() < exact.abs().max() / 200
    )
    assert (y != exact.bfloat16()).float().mean() < 0.01


def test_sources_that_nobody_reads_any_more_are_let_go() -> None:
    sums = DepthSums(Schedule([[0], [0, 1], [2], [2, 3]]), torch.ones(6, 1))
    with torch.no_grad():
        alive = []
        for _ in range(4):
            sums.append(torch.randn(4, WIDTH))
            alive.append([j for j, source in enumerate(sums.sources) if source is not None])
    assert alive == [[0], [], [2], []]


def test_autocast_is_not_touched_where_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.9 raises on XLA even when it is only to be switched off."""

    def raises(*_: object, **__: object) -> None:
        raise RuntimeError("unsupported scalarType")

    x, w = torch.ones(2, 3), torch.ones(1, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert depth_terms.project(x, w).dtype == torch.float32  # not autocast's bfloat16
    monkeypatch.setattr(torch, "autocast", raises)
    assert depth_terms.project(x, w).tolist() == [[3.0, 3.0]]
