"""Fair baselines: the same learning rates, an equally dear depth, times measured together."""

import json
import math
from pathlib import Path

import pytest

from tests.reproduce.fake_runs import FakeRuns
from tests.reproduce.own_table import TABLE, Reproduce, rows_of, write


def test_tune_lr_gives_every_row_the_same_grid_and_reports_its_best(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("tune=lr", "grid=0.5,1,2", "seeds=2") == 0
    rates = {(run.config.residual.name, run.config.optim.lr) for run in runs.executed}
    assert rates == {
        (name, lr) for name in ("plain", "laurel_rw", "laurel_pa") for lr in (0.002, 0.004, 0.008)
    }
    assert len(runs.executed) == 4 * 3 * 2
    assert "Plain 0.008, the edge of the grid" in capsys.readouterr().out


@pytest.mark.parametrize(("match", "depth"), [("params", 3), ("flops", 3)])
def test_match_solves_the_depth_of_the_deeper_baseline(
    match: str, depth: int, runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    """RW and PA cost next to nothing: one layer more is the least deeper baseline there is."""
    assert reproduce(f"match={match}", "seeds=1") == 0
    layers = {run.config.model.layers for run in runs.executed}
    assert layers == {2, depth}
    assert json.loads((tmp_path / "out/matched.json").read_text())["depth"] == depth


def test_match_finds_the_depth_of_a_costly_variant(reproduce: Reproduce, tmp_path: Path) -> None:
    """A rank of 64 at width 64: 2·64·64 numbers a layer; a layer has 12·64² and two norms."""
    rows = [dict(row) for row in TABLE["rows"]]  # type: ignore[union-attr]
    rows[1] = {**rows[1], "overrides": ["residual=laurel_lr", "residual.rank=64"]}
    write(tmp_path / "own" / "small.yaml", {**TABLE, "rows": rows})
    assert reproduce("match=params", "seeds=1", "model.layers=20") == 0
    more = math.ceil(20 * 2 * 64 * 64 / (12 * 64 * 64 + 2 * 64))
    assert json.loads((tmp_path / "out/matched.json").read_text())["depth"] == 20 + more


def test_step_times_are_measured_together_once(reproduce: Reproduce, tmp_path: Path) -> None:
    tiny = (
        "seeds=1",
        "rounds=2",
        "model.width=16",
        "model.heads=2",
        "data.sequence_length=16",
        "budget.batch_tokens=32",
        "rows=RW",
    )
    reproduce(*tiny)
    first = (tmp_path / "out/step_times.json").read_bytes()
    found = json.loads(first)
    assert found["seconds"].keys() == {"Plain", "RW"}
    assert all(len(seconds) == 2 for seconds in found["seconds"].values())
    table = rows_of(tmp_path / "out")
    ratios = [a / b for a, b in zip(*(found["seconds"][n] for n in ("RW", "Plain")), strict=True)]
    assert float(table["a small RW"]["bench_ratio"]) == pytest.approx(sum(ratios) / 2)
    assert "step_time_s" not in table["Plain"]  # of runs apart from each other
    reproduce(*tiny)
    assert (tmp_path / "out/step_times.json").read_bytes() == first
