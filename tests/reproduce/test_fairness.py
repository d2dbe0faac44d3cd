"""Fair baselines: the same learning rates, an equally dear depth, times measured together."""

import json
import math
from pathlib import Path

import pytest

from residual_lab.cli import main
from residual_lab.reproduce import timing
from residual_lab.run_directory import RunDirectory
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
    assert f"Baseline, {depth} layers ({match} matched)" in rows_of(tmp_path / "out")
    assert json.loads((tmp_path / "out/matched.json").read_text())["depth"] == depth


def test_match_finds_the_depth_of_a_costly_variant(reproduce: Reproduce, tmp_path: Path) -> None:
    """A rank of 64 at width 64: 2·64·64 numbers a layer; a layer has 12·64² and two norms."""
    rows = [dict(row) for row in TABLE["rows"]]  # type: ignore[union-attr]
    rows[1] = {**rows[1], "overrides": ["residual=laurel_lr", "residual.rank=64"]}
    write(tmp_path / "own" / "small.yaml", {**TABLE, "rows": rows})
    assert reproduce("match=params", "seeds=1", "model.layers=20") == 0
    more = math.ceil(20 * 2 * 64 * 64 / (12 * 64 * 64 + 2 * 64))
    assert json.loads((tmp_path / "out/matched.json").read_text())["depth"] == 20 + more


def test_match_is_estimated_into_a_file_as_often_as_one_likes(
    reproduce: Reproduce, tmp_path: Path
) -> None:
    small = ("data.sequence_length=16", "budget.batch_tokens=16")
    for _ in range(2):
        assert reproduce("match=params", "only=estimate", "out=costs.md", *small) == 0
    assert "3 layers (params matched)" in (tmp_path / "costs.md").read_text()


def test_a_table_with_another_question_has_a_folder_of_its_own(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    call = ["reproduce", "own/small.yaml", "rounds=0", "seeds=1", "rows=RW,Deeper"]
    for further in ([], ["tune=lr", "grid=1"], ["match=params"]):
        assert main([*call, *further]) == 0
    ends = ("desk", "desk-match_params", "desk-tune_lr")
    folders = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert folders == [f"own-small-{end}" for end in ends]


def test_match_says_that_the_blocks_of_a_resnet_are_not_solved(
    capsys: pytest.CaptureFixture[str], runs: FakeRuns
) -> None:
    assert main(["reproduce", "laurel/resnet50", "match=params"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "match=params: a resnet has no model.layers to solve" in line
    assert runs.executed == []


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


def test_a_deeper_baseline_that_rows_are_compared_with_stays(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    """And of the others one is solved: they would all be the same."""
    plain, rw, deeper, _ = TABLE["rows"]
    rows = [
        plain,
        rw,
        {**deeper, "name": "Deep", "scales": {"desk": ["model.layers=6"]}},
        {**rw, "name": "Deep RW", "names": {}, "scales": {"desk": ["model.layers=6"]}}
        | {"baseline": "Deep"},
        deeper,
        {**deeper, "name": "Deepest", "scales": {"desk": ["model.layers=9"]}},
    ]
    write(tmp_path / "own" / "small.yaml", {**TABLE, "rows": rows})
    assert reproduce("match=params", "seeds=1") == 0
    table = rows_of(tmp_path / "out")
    assert list(table) == [
        *("Plain", "a small RW", "Deep", "Deep RW"),
        "Baseline, 3 layers (params matched)",
    ]
    assert table["Deep RW"]["baseline"] == "Deep"
    assert {run.config.model.layers for run in runs.executed} == {2, 3, 6}


def test_a_rate_at_which_seeds_diverge_is_not_the_best(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    """0.008 has the lowest loss, where it does not diverge."""

    def ending(run: RunDirectory) -> int:
        lost = run.config.optim.lr == 0.008 and run.config.seed == 1
        return FakeRuns.diverge(run) if lost else FakeRuns.finish(run)

    runs.ending = ending
    assert reproduce("tune=lr", "grid=1,2", "rows=RW") == 3
    notes = json.loads((tmp_path / "out/table.json").read_text())["notes"]
    (best,) = [note for note in notes if note.startswith("Learning rates")]
    assert "Plain 0.004" in best and "a small RW 0.004" in best


def test_a_stopped_grid_is_provisional(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    """And says nothing of rows that have no run."""

    def ending(run: RunDirectory) -> int:
        return FakeRuns.finish(run) if run.config.residual.name == "plain" else 1

    runs.ending = ending
    assert reproduce("tune=lr", "grid=1,2", "rows=RW") == 1
    notes = json.loads((tmp_path / "out/table.json").read_text())["notes"]
    (best,) = [note for note in notes if "provisional" in note]
    assert "is to be trained" in best and "Plain" in best and "RW" not in best
    assert not any("later run" in note for note in notes)


def test_a_table_without_its_device_is_written_without_times(
    reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(*_: object) -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(timing, "_measured", elsewhere)
    assert reproduce("seeds=1", "rounds=2", "rows=RW") == 0
    notes = json.loads((tmp_path / "out/table.json").read_text())["notes"]
    assert any(note.startswith("Step times were not measured: no such device") for note in notes)
    assert "bench_ratio" not in rows_of(tmp_path / "out")["Plain"]


def test_rows_of_another_batch_are_timed_apart(
    reproduce: Reproduce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, int]] = []

    def measured(configs: dict[str, object], batch: int, rounds: int) -> tuple[str, object]:
        calls.append((len(configs), batch))
        return "a device", {name: [0.1] * rounds for name in configs}

    monkeypatch.setattr(timing, "_measured", measured)
    rows = [*TABLE["rows"][:2], {**TABLE["rows"][1], "name": "small", "names": {}}]
    rows[2] |= {"scales": {"desk": ["budget.batch_tokens=1024"]}}
    write(tmp_path / "own" / "small.yaml", {**TABLE, "rows": rows})
    assert reproduce("seeds=1", "rounds=2") == 0
    assert calls == [(2, 8), (1, 4)]


def test_an_override_that_cancels_what_tells_rows_apart_is_told(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    assert reproduce("seeds=1", "model.layers=3") == 0
    assert "One and the same run: Plain and Deeper." in (tmp_path / "out/table.md").read_text()


def test_an_axis_that_no_row_has_is_refused_before_any_run(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless rows were chosen: those that have it may be among the others."""
    write(tmp_path / "own" / "small.yaml", {**TABLE, "axis": "model.layer"})
    assert reproduce("seeds=1") == 2
    said = "own/small, axis or grid: model.layer: no row has such a key; did you mean model.layers?"
    assert capsys.readouterr().err == f"{said}\n"
    assert runs.executed == []
    write(tmp_path / "own" / "small.yaml", {**TABLE, "axis": "residual.bound"})
    assert reproduce("seeds=1", "rows=Deeper") == 0
