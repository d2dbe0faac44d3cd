"""`residual-lab reproduce` from end to end, on runs that end at once."""

import json
import math
import re
from pathlib import Path

import pytest
from scipy import stats

from residual_lab.cli import main
from residual_lab.reproduce.running import held
from residual_lab.run_directory import RunDirectory
from tests.reproduce.fake_runs import FakeRuns
from tests.reproduce.own_table import TABLE, Reproduce, contents, rows_of, write


def test_every_row_and_seed_runs_once_and_the_table_has_the_statistics(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    assert reproduce() == 0
    done = [
        (run.config.residual.name, run.config.model.layers, run.config.seed)
        for run in runs.executed
    ]
    assert len(done) == len(set(done)) == 4 * 3
    table = rows_of(tmp_path / "out")
    assert list(table) == ["Plain", "a small RW", "Deeper", "PA, later"]
    losses = {
        name: [
            run.result["test_loss"]  # type: ignore[index]
            for run in sorted(runs.executed, key=lambda run: run.config.seed)
            if (run.config.residual.name, run.config.model.layers) == (residual, 2)
        ]
        for name, residual in (("Plain", "plain"), ("a small RW", "laurel_rw"))
    }
    own, base = losses["a small RW"], losses["Plain"]
    gaps = [a - b for a, b in zip(own, base, strict=True)]
    row = table["a small RW"]
    assert float(row["test_loss"]) == pytest.approx(sum(own) / 3)
    assert float(row["difference"]) == pytest.approx(sum(gaps) / 3)
    low, high = stats.t.interval(0.95, 2, sum(gaps) / 3, stats.sem(gaps))
    assert float(row["difference_low"]) == pytest.approx(low)
    assert float(row["difference_high"]) == pytest.approx(high)
    assert float(row["p_uncorrected"]) == pytest.approx(stats.ttest_rel(own, base).pvalue)


def test_the_papers_perplexities_stand_beside_ours_in_nats(
    reproduce: Reproduce, tmp_path: Path
) -> None:
    reproduce("seeds=5")
    table = rows_of(tmp_path / "out")
    row = table["a small RW"]
    assert float(row["paper"]) == 19.0
    assert float(row["paper_difference"]) == pytest.approx(math.log(19 / 20))
    assert row["verdict"] == "same sign"
    assert table["Deeper"]["verdict"] in ("neither sees one", "only we see one")  # within its error
    assert table["PA, later"]["paper"] == ""
    report = (tmp_path / "out/report.md").read_text()
    assert "the paper: −0.0513 (same sign)" in report
    assert "residual-lab train model=desk_small model.layers=2" in report


def test_runs_lie_where_they_are_told_to(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    assert reproduce("seeds=1", f"run.dir={tmp_path / 'shared'}") == 0
    assert {run.path.parent for run in runs.executed} == {tmp_path / "shared"}


def test_a_table_that_is_run_again_changes_nothing(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    reproduce()
    before, runs.executed = contents(tmp_path / "out"), []
    assert reproduce() == 0
    assert runs.executed == []
    assert contents(tmp_path / "out") == before


def test_pictures_are_drawn_and_the_report_shows_them(runs: FakeRuns, tmp_path: Path) -> None:
    write(tmp_path / "own" / "small.yaml", TABLE)
    call = ["reproduce", "own/small.yaml", "out=out", "rounds=0", "seeds=2", "rows=RW"]
    assert main([*call, "tune=lr", "grid=1,2"]) == 0
    drawn = {path.name for path in (tmp_path / "out/pictures").iterdir()}
    assert drawn >= {
        f"{name}.{kind}"
        for name in ("loss_curves", "difference", "sensitivity")
        for kind in ("png", "svg")
    }
    shown = re.findall(r"!\[\w+\]\((.+?)\)", (tmp_path / "out/report.md").read_text())
    assert {f"pictures/{name}" for name in drawn if name.endswith(".png")} == set(shown)
    before = contents(tmp_path / "out")
    main([*call, "tune=lr", "grid=1,2"])
    assert contents(tmp_path / "out") == before


def test_the_small_files_are_enough(runs: FakeRuns, reproduce: Reproduce, tmp_path: Path) -> None:
    """What is kept beside the table stands in for run directories that are gone."""
    reproduce()
    before, runs.executed = contents(tmp_path / "out"), []
    for path in (tmp_path / "runs").iterdir():
        path.rename(tmp_path / f"gone-{path.name}")
    assert reproduce() == 0
    assert runs.executed == []
    assert contents(tmp_path / "out") == before
    kept = next((tmp_path / "out/runs").glob("*laurel_pa*s1*/config.yaml")).read_text()
    assert str(tmp_path) not in kept


def test_a_row_that_is_missing_again_runs_what_it_starts_from_too(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path
) -> None:
    """The small files have no weights to start from."""
    reproduce("seeds=1")
    for path in (tmp_path / "runs").iterdir():
        path.rename(tmp_path / f"gone-{path.name}")
    (later,) = (tmp_path / "out/runs").glob("*laurel_pa*")
    later.rename(tmp_path / "gone")
    runs.executed = []
    assert reproduce("seeds=1") == 0
    assert [run.config.residual.name for run in runs.executed] == ["plain", "laurel_pa"]


def test_the_order_of_rows_changes_no_number(reproduce: Reproduce, tmp_path: Path) -> None:
    reproduce()
    before = rows_of(tmp_path / "out")
    turned = {**TABLE, "rows": [TABLE["rows"][0], *reversed(TABLE["rows"][1:])]}  # type: ignore[index]
    write(tmp_path / "own" / "small.yaml", turned)
    reproduce()
    after = rows_of(tmp_path / "out")
    assert list(after) != list(before)
    assert after == before


def test_failed_and_diverged_rows_stay_marked(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ending(run: RunDirectory) -> int:
        plain = run.config.residual.name == "plain"
        return FakeRuns.finish(run) if plain else FakeRuns.diverge(run)

    runs.ending = ending
    assert reproduce() == 3
    out = capsys.readouterr().out
    assert "0 of 3: 3 diverged" in out
    assert reproduce() == 3  # also where nothing is left to run
    assert (
        json.loads((tmp_path / "out/table.json").read_text())["rows"][1]["seeds"]["diverged"] == 3
    )


def test_what_starts_from_a_run_that_failed_is_left_out(
    runs: FakeRuns, reproduce: Reproduce, capsys: pytest.CaptureFixture[str]
) -> None:
    def ending(run: RunDirectory) -> int:
        if run.config.residual.name == "plain" and run.config.seed == 1:
            return FakeRuns.diverge(run)
        return FakeRuns.finish(run)

    runs.ending = ending
    assert reproduce() != 0
    assert "left out: PA, later, seed 1: it starts from Plain" in capsys.readouterr().err
    started = [run.config for run in runs.executed if run.config.residual.name == "laurel_pa"]
    assert sorted(config.seed for config in started) == [0, 2]
    assert all(config.start.run and "plain" in config.start.run for config in started)


def test_rows_brings_what_they_are_compared_with_and_start_from(
    runs: FakeRuns, reproduce: Reproduce
) -> None:
    assert reproduce("rows=PA, later", "seeds=1") == 0
    assert [run.config.residual.name for run in runs.executed] == ["plain", "laurel_pa"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rows=Deepr"], "rows=Deepr: no such row of own/small; did you mean Deeper?"),
        (["scael=desk"], "scael=desk: no such option; did you mean scale?"),
        (["scale=desc"], "scale=desc: must be one of paper, gpu, desk; did you mean desk?"),
        (["seeds=none"], "seeds=none: must be a whole number ≥ 1"),
        (["seeds=,"], "seeds=,: must be a whole number ≥ 1"),
        (["rows="], "rows=: must be names behind commas; there are Plain, a small RW"),
        (["rounds=1"], "rounds=1: one has no interval; must be at least 2, or 0"),
        (["residual=plain"], "residual=plain: each row has its own residual; choose among them"),
        (["grid=1,2"], "grid=1,2: the multiples of tune=lr; give that too"),
        (["tune=lr", "grid=0,1"], "grid=0,1: must be multiples"),
        (["match=width"], "match=width: must be one of params, flops, step_time"),
        (["jobs=2", "hydra/launcher=ray"], "jobs=2: hydra/launcher says how many run"),
        (["model.layers=x"], "own/small, row Plain: model.layers=x: must be a whole number"),
        (["format=html"], "format=html: no such format"),
        (["seed=3"], "seed=3: the command gives seed to each run; for seeds: seeds=0,1,2"),
        (["start.run=x"], "start.run=x: the command gives start.run to each run"),
        (["tune=lr", "grid=nan"], "grid=nan: must be multiples"),
        (["only=estimate", "tune=lr"], "tune=lr: no cost depends on it"),
        (["only=table"], "own/small: no run has come to an end: there is no table yet"),
        (["hydra/launcher=jobli"], "hydra/launcher=jobli: no such choice; did you mean joblib?"),
    ],
)
def test_what_is_refused_is_one_line_before_any_work(
    arguments: list[str],
    said: str,
    runs: FakeRuns,
    reproduce: Reproduce,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert reproduce(*arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert runs.executed == []
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_the_table_alone_is_on_standard_output(
    reproduce: Reproduce, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce("format=json", "seeds=1") == 0
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 4


def test_rows_with_baselines_of_their_own_say_what_they_are_compared_with(
    reproduce: Reproduce, tmp_path: Path
) -> None:
    reproduce("seeds=2")
    assert "baseline" not in rows_of(tmp_path / "out")["Plain"]
    rows = [*TABLE["rows"][:3], {**TABLE["rows"][3], "baseline": "Deeper"}]
    write(tmp_path / "own" / "small.yaml", {**TABLE, "rows": rows})
    reproduce("seeds=2")
    table = rows_of(tmp_path / "out")
    compared = {name: row["baseline"] for name, row in table.items()}
    assert compared == {
        "Plain": "",
        "a small RW": "Plain",
        "Deeper": "Plain",
        "PA, later": "Deeper",
    }
    gap = float(table["PA, later"]["test_loss"]) - float(table["Deeper"]["test_loss"])
    assert float(table["PA, later"]["difference"]) == pytest.approx(gap)


def test_runs_on_other_data_are_not_compared(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce("seeds=2", "rows=RW")
    for path in (tmp_path / "runs").glob("*laurel_rw*/result.json"):
        path.write_text(path.read_text().replace("f00d", "beef"))
    reproduce("seeds=2", "rows=RW")
    assert rows_of(tmp_path / "out")["a small RW"]["difference"] == ""
    assert "had other data: a small RW" in capsys.readouterr().out


def test_what_a_run_gets_later_is_kept_too(reproduce: Reproduce, tmp_path: Path) -> None:
    reproduce("seeds=1", "rows=RW")
    (run,) = (tmp_path / "runs").glob("*laurel_rw*")
    (run / "inspection.json").write_text("{}")
    reproduce("seeds=1", "rows=RW")
    assert (tmp_path / "out/runs" / run.name / "inspection.json").read_text() == "{}"


def test_two_commands_at_once(
    runs: FakeRuns, reproduce: Reproduce, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is refused while the first has the folder; what was not there before goes."""
    with held(tmp_path / "out"):
        assert reproduce("seeds=1") == 2
    assert "out=out: in use by another process" in capsys.readouterr().err
    assert runs.executed == [] and not (tmp_path / "out").exists()


def test_the_list_of_tables_says_how_large_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "format=json"]) == 0
    rows = {row["table"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["laurel/c4_ablation"]["rows"] == "7"
    papers = {name.partition("/")[0] for name in rows}
    assert papers >= {"laurel", "denseformer", "deepcrossattention"}
