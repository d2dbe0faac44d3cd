"""Training steps of connections against plain, with the ratios that they should not exceed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from residual_lab.costs.arguments import Arguments
from residual_lab.costs.bench import Bench, bench
from residual_lab.costs.bench_table import bench_table
from residual_lab.costs.timing import Ratio
from residual_lab.tables import render

OPTIONS = ("batch", "rounds", "clock", "format", "out")


def against_limits(
    limits: Mapping[str, float], shape: Sequence[str], arguments: Sequence[str], batch: int
) -> int:
    """Bench ``residual=plain`` and the keys of ``limits``; print the table and what is exceeded.

    A key is the choice of a residual, with further overrides after it where there are some:
    ``dca_k residual.k=2``. A limit is met or exceeded where the whole interval lies on its side.
    Returns 1 where one is exceeded, otherwise 0.
    """
    asked = Arguments.of([*shape, *arguments], OPTIONS)
    size = asked.whole_number("batch", batch)
    rounds = asked.whole_number("rounds", 20, least=2)
    assert size is not None and rounds is not None
    configurations = {}
    for name in ("plain", *limits):
        overrides = (*asked.overrides, *f"residual={name}".split())
        (configurations[name],) = replace(asked, overrides=overrides).configurations(size).values()
    clock = asked.options.get("clock", "wall")
    found = bench(configurations, size, rounds, ("training",), clock)
    render(bench_table(found), asked.options.get("format"), asked.options.get("out"))
    print()
    return max(
        judged(name, found.ratio(name, "training"), limit, bound_text(found, name))
        for name, limit in limits.items()
    )


def bound_text(found: Bench, name: str) -> str:
    bound = found.bound(name)
    return "" if bound is None else f", bound {bound:.3f}"


def judged(name: str, result: Ratio | None, limit: float, further: str = "") -> int:
    """Print where the interval of a ratio lies, and ``further``; 1 where it exceeds the limit."""
    assert result is not None
    said = "exceeded" if result.low > limit else "met" if result.high <= limit else "not decided"
    interval = f"{result.median:.3f} [{result.low:.3f}, {result.high:.3f}]"
    print(f"{name}: {interval}, limit {limit:.2f} {said}{further}")
    return int(result.low > limit)
