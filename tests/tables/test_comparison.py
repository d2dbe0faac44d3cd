"""What a comparison table says about runs whose numbers are known."""

import random
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from scipy import stats

from residual_lab.errors import LabError
from residual_lab.tables import Table, compare, load_runs
from tests.tables.synthetic_runs import make_run

LOSSES = {
    "plain": [3.431, 3.425, 3.452, 3.436, 3.402],
    "laurel_rw": [3.412, 3.398, 3.441, 3.405, 3.388],
    "laurel_lr": [3.430, 3.427, 3.449, 3.437, 3.405],
}


def make_three(folder: Path) -> None:
    for residual, losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            make_run(folder, residual, seed, val_loss=loss)


def texts(table: Table, key: str) -> dict[str, str]:
    """The column's text by row label."""
    labels = [cell.text for cell in table.column("row")]
    return dict(zip(labels, (cell.text for cell in table.column(key)), strict=True))


def test_seeds_are_aggregated_and_compared_by_pairs(tmp_path: Path) -> None:
    make_three(tmp_path)
    table = compare(load_runs([tmp_path]))
    assert [cell.text for cell in table.column("row")] == ["plain", "laurel_lr", "laurel_rw"]
    values = {row[0].text: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    found = {c.key: cell for c, cell in values["laurel_rw"].items()}
    own, base = LOSSES["laurel_rw"], LOSSES["plain"]
    expected = stats.ttest_rel(own, base)
    other = stats.ttest_rel(LOSSES["laurel_lr"], base)
    assert found["val_loss"].value == pytest.approx(mean(own))
    assert found["val_loss"].details == {"std": pytest.approx(stdev(own)), "n": 5}
    assert found["difference"].value == pytest.approx(mean(own) - mean(base))
    interval = expected.confidence_interval(0.95)
    assert found["difference"].details["low"] == pytest.approx(interval.low)
    assert found["difference"].details["high"] == pytest.approx(interval.high)
    assert found["p"].details["uncorrected"] == pytest.approx(expected.pvalue)
    assert expected.pvalue < other.pvalue  # so Holm doubles it: two rows are tested
    assert found["p"].value == pytest.approx(2 * expected.pvalue)
    assert texts(table, "seeds")["plain"] == "5"
    assert texts(table, "val_loss")["plain"] == "3.429 ± 0.018"
    assert texts(table, "difference")["laurel_rw"] == "−0.020 [−0.031, −0.010]"
    assert texts(table, "difference")["plain"] == "baseline"


def test_the_order_of_runs_changes_nothing(tmp_path: Path) -> None:
    make_three(tmp_path)
    runs = load_runs([tmp_path])
    table = compare(runs)
    random.Random(0).shuffle(runs)
    assert compare(runs) == table


@pytest.mark.parametrize(
    ("configurations", "labels"),
    [
        (
            [{}, {"model.layers": 9}, {"residual.name": "laurel_rw"}],
            ["plain", "laurel_rw", "plain layers=9"],
        ),
        (  # an option that only some connections have
            [{}] + [{"residual.name": "laurel_lr", "residual.rank": rank} for rank in (16, 4, 128)],
            ["plain", "laurel_lr rank=4", "laurel_lr rank=16", "laurel_lr rank=128"],
        ),
        (  # a preset that changes many keys is told by its name
            [{}, {"model.name": "large", "model.layers": 24, "model.width": 768}],
            ["plain model=desk", "plain model=large"],
        ),
        (  # the same last part in two sections
            [{}, {"model.dropout": 0.1}, {"optim.dropout": 0.1}],
            ["plain", "plain model.dropout=0.1", "plain optim.dropout=0.1"],
        ),
        (  # runs of a version that had no such key yet
            [
                {},
                {"model.new": None},
                {"model.new": None, "residual.name": "laurel_rw"},
                {"model.new": None, "residual.name": "laurel_lr"},
            ],
            ["plain", "laurel_lr", "laurel_rw", "plain new=unset"],
        ),
        (  # no value is usual
            [{"optim.lr": lr} for lr in (0.01, 0.001, 0.0001)],
            ["plain lr=0.0001", "plain lr=0.001", "plain lr=0.01"],
        ),
        (  # what changes no result makes no row
            [{}, {"run.dir": "elsewhere", "logger.name": "csv", "data.workers": 3, "seed": 1}],
            ["plain"],
        ),
    ],
)
def test_rows_are_what_differs_in_short(
    tmp_path: Path, configurations: list[dict[str, object]], labels: list[str]
) -> None:
    for overrides in configurations:
        make_run(tmp_path, str(overrides.get("residual.name", "plain")), overrides=overrides)
    table = compare(load_runs([tmp_path]))
    found = [cell.text for cell in table.column("row")]
    assert sorted(found) == sorted(labels)
    baseline = [cell.text for cell in table.column("difference")].index("baseline")
    assert baseline == 0
    rest = [label for label in labels if label != found[0]]
    assert found[1:] == rest  # in natural order


def test_of_two_plain_rows_the_baseline_is_the_one_like_the_others(tmp_path: Path) -> None:
    make_run(tmp_path, val_loss=3.5)
    make_run(tmp_path, overrides={"model.layers": 9}, val_loss=3.2)
    make_run(tmp_path, "laurel_rw", val_loss=3.4)
    assert texts(compare(load_runs([tmp_path])), "difference")["plain"] == "baseline"
    named = compare(load_runs([tmp_path]), baseline="plain layers=9")
    assert texts(named, "difference")["plain layers=9"] == "baseline"
    assert texts(named, "difference")["laurel_rw"] == "+0.2000"
    assert texts(compare(load_runs([tmp_path]), "plain model.layers=9"), "difference") == texts(
        named, "difference"
    )


def test_of_plain_at_several_learning_rates_the_best_is_the_baseline(tmp_path: Path) -> None:
    for lr, loss in ((0.001, 3.5), (0.003, 3.3), (0.01, 3.6)):
        make_run(tmp_path, overrides={"optim.lr": lr}, val_loss=loss)
        make_run(tmp_path, "laurel_rw", overrides={"optim.lr": lr}, val_loss=loss)
    found = texts(compare(load_runs([tmp_path])), "difference")
    assert found["plain lr=0.003"] == "baseline"


def test_each_corpus_has_a_baseline_of_its_own(tmp_path: Path) -> None:
    for corpus, loss in (("c4", 3.0), ("pg19", 4.0)):
        for residual, gain in (("plain", 0.0), ("laurel_rw", 0.1)):
            name = {"data.name": corpus}
            made = make_run(tmp_path, residual, overrides=name, val_loss=loss - gain)
            assert made.exists()
    make_run(tmp_path, "laurel_rw", overrides={"data.name": "lm1b"})
    table = compare(load_runs([tmp_path]))
    found = texts(table, "difference")
    assert found["laurel_rw data=c4"] == found["laurel_rw data=pg19"] == "−0.1000"
    assert found["laurel_rw data=lm1b"] == "–"
    assert "No baseline on the same data: laurel_rw data=lm1b." in table.notes


@pytest.mark.parametrize("key", ["data.test_tokens", "data.validation_fraction", "data.revision"])
def test_sets_of_another_size_have_a_baseline_of_their_own(key: str, tmp_path: Path) -> None:
    """Also where the label of one of them is the name asked for, as of the usual value."""
    for value, residual, loss in ((1, "plain", 3.2), (2, "plain", 3.5), (2, "laurel_rw", 3.0)):
        make_run(tmp_path, residual, overrides={key: value}, val_loss=loss)
    found = texts(compare(load_runs([tmp_path])), "difference")
    assert sorted(found.values()) == ["baseline", "baseline", "−0.5000"]


def test_an_unknown_baseline_is_refused_but_plain_may_be_absent(tmp_path: Path) -> None:
    make_run(tmp_path, "laurel_rw")
    with pytest.raises(LabError, match=r"baseline=laurel_xx: no such row \(there are laurel_rw\)"):
        compare(load_runs([tmp_path]), baseline="laurel_xx")
    with pytest.raises(LabError, match=r"baseline= : no such row"):
        compare(load_runs([tmp_path]), baseline=" ")
    table = compare(load_runs([tmp_path]))
    assert "difference" not in [column.key for column in table.columns]
    assert any("No row is plain" in note for note in table.notes)


def test_an_unknown_metric_is_refused_with_the_choices(tmp_path: Path) -> None:
    make_run(tmp_path)
    with pytest.raises(LabError, match=r"metric=val_los: .*did you mean val_loss"):
        compare(load_runs([tmp_path]), metric="val_los")


def test_differences_can_be_taken_in_another_metric(tmp_path: Path) -> None:
    make_run(tmp_path, val_accuracy=0.5)
    make_run(tmp_path, "laurel_rw", val_accuracy=0.625)
    table = compare(load_runs([tmp_path]), metric="val_accuracy")
    assert [column.key for column in table.columns][2:4] == ["val_accuracy", "difference"]
    assert [cell.text for cell in table.column("val_accuracy")] == ["50.00", "62.50"]  # percent
    assert texts(table, "difference")["laurel_rw"] == "+12.50"


def test_one_seed_is_marked(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, "laurel_rw", val_loss=3.4)
    table = compare(load_runs([tmp_path]))
    assert texts(table, "p")["laurel_rw"] == "no evidence (n = 1)"
    assert texts(table, "difference")["laurel_rw"] == "−0.1000"
    assert any(note.startswith("No evidence") for note in table.notes)
    assert "corrected" not in table.notes[0]  # no p-value stands in the table


def test_one_thread_is_singular(tmp_path: Path) -> None:
    """In print only: what was recorded stays, so that old and new runs compare."""
    make_run(tmp_path, device="1 × a processor (1 threads)")
    notes = "\n".join(compare(load_runs([tmp_path])).notes)
    assert "Hardware: 1 × a processor (1 thread);" in notes


def test_unshared_seeds_are_marked(tmp_path: Path) -> None:
    for seed in range(2):
        make_run(tmp_path, seed=seed, val_loss=3.5 + 0.01 * seed)
        make_run(tmp_path, "laurel_rw", seed + 2, val_loss=3.4 + 0.01 * seed)
    table = compare(load_runs([tmp_path]))
    assert texts(table, "p")["laurel_rw"].endswith("†")
    assert any("† Fewer than two seeds shared" in note for note in table.notes)


def test_diverged_and_failed_runs_stay_and_are_counted(tmp_path: Path) -> None:
    for seed in range(4):
        make_run(tmp_path, seed=seed)
    make_run(tmp_path, "laurel_rw", 0, val_loss=3.4)
    make_run(tmp_path, "laurel_rw", 1, val_loss=3.6)
    make_run(tmp_path, "laurel_rw", 2, status="diverged", val_loss=float("nan"))
    make_run(tmp_path, "laurel_rw", 3, status="failed", val_loss=99.0)
    make_run(tmp_path, "laurel_pa", 0, status="diverged", val_loss=float("nan"), params=1_800_024)
    table = compare(load_runs([tmp_path]))
    assert texts(table, "seeds")["laurel_rw"] == "2 of 4: 1 diverged, 1 failed‡"
    assert texts(table, "val_loss")["laurel_rw"] == "3.50 ± 0.14"  # of those that finished
    assert texts(table, "seeds")["laurel_pa"] == "0 of 1: 1 diverged"
    assert texts(table, "val_loss")["laurel_pa"] == "–"
    assert texts(table, "params")["laurel_pa"] == "1,800,024 (< +0.01%)"
    assert any(note.startswith("‡ Runs were lost") for note in table.notes)


def test_unfinished_runs_are_left_out_with_a_line(tmp_path: Path) -> None:
    make_run(tmp_path)
    path = make_run(tmp_path, "laurel_rw", status=None)
    table = compare(load_runs([tmp_path]))
    assert [cell.text for cell in table.column("row")] == ["plain"]
    assert f"Left out, not finished: 1 ({path.name})." in table.notes
    with pytest.raises(LabError, match="none of 1 runs has come to an end"):
        compare(load_runs([path]))


def test_of_a_run_made_twice_the_later_counts(tmp_path: Path) -> None:
    make_run(tmp_path / "a", val_loss=3.3, started="2026-02-01T00:00:00")
    make_run(tmp_path / "b", val_loss=3.9, started="2026-01-01T00:00:00")
    table = compare(load_runs([tmp_path]))
    assert texts(table, "val_loss")["plain"] == "3.3000"
    assert "Left out, same configuration and seed as a later run: 1." in table.notes


def test_costs_are_relative_to_the_baseline(tmp_path: Path) -> None:
    make_run(tmp_path)
    memory = {"kind": "cpu live tensors", "value": 3 * 2**27}
    step = {"median": 0.55, "p90": 0.6, "n": 29}
    made: dict[str, Any] = {"peak_memory_bytes": memory, "step_time_s": step, "params": 1_818_000}
    make_run(tmp_path, "laurel_rw", **made)
    table = compare(load_runs([tmp_path]))
    assert texts(table, "params")["laurel_rw"] == "1,818,000 (+1.0%)"
    assert texts(table, "peak_memory_bytes")["laurel_rw"] == "0.3750 (+50.0%)"
    assert texts(table, "step_time_s")["laurel_rw"] == "0.5500 (+10.0%)"
    (cell,) = [row[-1] for row in table.rows if row[0].text == "laurel_rw"]
    assert table.columns[-1].key == "flops_per_token"
    assert cell.text == "12.346 M"


def test_costs_on_other_hardware_are_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, "laurel_rw", device="another processor")
    kind = {"kind": "cuda allocated", "value": 2**28}
    make_run(tmp_path, "laurel_lr", peak_memory_bytes=kind)
    table = compare(load_runs([tmp_path]))
    assert texts(table, "step_time_s")["laurel_rw"] == "0.5000"
    assert texts(table, "peak_memory_bytes")["laurel_rw"] == "0.2500"
    assert texts(table, "peak_memory_bytes")["laurel_lr"] == "0.2500"
    assert texts(table, "step_time_s")["laurel_lr"] == "0.5000 (0.00%)"
    assert texts(table, "params")["laurel_rw"].endswith("%)")  # the same on any hardware


def test_metrics_that_no_run_has_make_no_column(tmp_path: Path) -> None:
    make_run(tmp_path)
    keys = [column.key for column in compare(load_runs([tmp_path])).columns]
    assert "mfu" not in keys
    assert "val_accuracy" not in keys
    make_run(tmp_path, "laurel_rw", mfu=0.41)
    assert texts(compare(load_runs([tmp_path])), "mfu") == {"plain": "–", "laurel_rw": "0.4100"}
