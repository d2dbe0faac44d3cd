"""``reproduce TABLE only=estimate``: what can be counted, without a run."""

import json
from pathlib import Path

import pytest

from tests.reproduce.fake_runs import FakeRuns
from tests.reproduce.own_table import TABLE, Reproduce, write


def test_only_estimate_fills_in_what_can_be_counted(
    runs: FakeRuns, reproduce: Reproduce, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A layer of the paper's model has 5,506,560 parameters."""
    small = ("data.sequence_length=16", "budget.batch_tokens=16", "model.layers=2")
    assert reproduce("scale=paper", "only=estimate", "rows=RW", "format=json", *small) == 0
    rows = {row["row"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["Plain"]["params"] == 157_204_992 - 22 * 5_506_560 == 36_060_672
    assert rows["RW"]["params"] == 36_060_672 + 2 * 2
    assert rows["RW"]["paper_params"] == 157.2e6 and rows["RW"]["params_match"] is None
    assert rows["Plain"]["total_bytes"] > 4 * 4 * 36_060_672  # weights, gradients, AdamW's two
    assert runs.executed == [] and [path.name for path in tmp_path.iterdir()] == ["own"]
    assert reproduce("scale=paper", "only=estimate", "rows=Plain", "out=costs.md", *small) == 0
    assert "36,060,672" in (tmp_path / "costs.md").read_text()


def test_only_estimate_compares_the_share_that_a_row_adds(
    reproduce: Reproduce, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [dict(row) for row in TABLE["rows"]]
    rows[1]["paper"] = {"added_parameters": "0.00%"}
    rows[2]["paper"] = {"added_parameters": "14.01%"}
    write(tmp_path / "own" / "small.yaml", {**TABLE, "rows": rows})
    short = ("data.sequence_length=16", "budget.batch_tokens=16")
    assert reproduce("scale=paper", "only=estimate", "format=json", *short) == 0
    found = {row["row"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    added = 100 * 4 * 5_506_560 / 157_204_992
    assert added == pytest.approx(14.011, abs=1e-3)
    assert [found[name]["params_match"] for name in ("RW", "Deeper")] == ["rounded"] * 2
