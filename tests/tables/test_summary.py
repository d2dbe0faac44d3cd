"""The short table at the end of a run."""

from pathlib import Path

import pytest

from residual_lab.errors import LabError
from residual_lab.tables import Table, summary
from tests.tables.synthetic_runs import make_run


def lines(table: Table) -> dict[str, list[str]]:
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def test_a_run_stands_beside_plain_of_the_same_configuration_and_seed(tmp_path: Path) -> None:
    make_run(tmp_path, seed=0, val_loss=9.0)
    make_run(tmp_path, seed=1, val_loss=3.5)
    make_run(tmp_path, seed=1, val_loss=8.0, overrides={"optim.lr": 0.1})
    step = {"median": 0.55, "p90": 0.6, "n": 29}
    run = make_run(tmp_path, "laurel_rw", 1, val_loss=3.45, params=1_818_000, step_time_s=step)
    table = summary(run)
    assert [column.title for column in table.columns] == ["", "laurel_rw", "plain", "change"]
    assert lines(table) == {
        "parameters": ["1,818,000", "1,800,000", "+1.0%"],
        "validation loss": ["3.4500", "3.5000", "−0.0500"],
        "test loss": ["3.6000", "3.6000", "0.0000"],
        "perplexity": ["36.60", "36.60", "0.0000"],
        "peak memory [GiB]": ["0.2500", "0.2500", "0.00%"],
        "median step time [s]": ["0.5500", "0.5000", "+10.0%"],
    }
    assert table.title == f"{run.name}: finished"
    assert "not taken side by side" in table.notes[1]


def test_plain_and_lonely_runs_stand_alone(tmp_path: Path) -> None:
    plain = make_run(tmp_path / "a")
    assert [column.key for column in summary(plain).columns] == ["quantity", "run"]
    assert summary(plain).notes == ()
    make_run(tmp_path / "b", status="failed")
    lonely = make_run(tmp_path / "b", "laurel_rw")
    assert [column.key for column in summary(lonely).columns] == ["quantity", "run"]
    assert "residual=plain" in summary(lonely).notes[0]


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    run = make_run(tmp_path, status="failed", error="ValueError: no", val_loss=float("nan"))
    table = summary(run)
    assert table.title.endswith(": failed")
    assert table.notes == ("ValueError: no",)
    assert "validation loss" not in lines(table)


def test_what_is_no_run_directory_is_refused(tmp_path: Path) -> None:
    make_run(tmp_path)
    make_run(tmp_path, "laurel_rw")
    with pytest.raises(LabError, match="not a run directory"):
        summary(tmp_path)
