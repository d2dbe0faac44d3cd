"""The format of a table's file: what it gives, and what is refused, all at once."""

import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from residual_lab.errors import LabError
from residual_lab.reproduce.table_file import TableFile, load_table, read_table

TABLE: dict[str, Any] = {
    "title": "A table",
    "source": "nobody",
    "metric": "test_loss",
    "baseline": "plain",
    "overrides": ["data=lm1b"],
    "scales": {
        "paper": {"seeds": 1, "overrides": ["model=flax_lm1b"], "on": "64 TPUs"},
        "gpu": {"seeds": 3, "on": "one GPU", "minutes": 20},
        "desk": {"seeds": 5, "overrides": ["model=desk"], "on": "one CPU core", "minutes": 1.5},
    },
    "rows": [
        {"name": "plain", "overrides": ["residual=plain"], "paper": {"params": "1.50M"}},
        {
            "name": "RW",
            "names": {"desk": "RW, small"},
            "overrides": ["residual=laurel_rw"],
            "scales": {"desk": ["residual.vector=true"]},
            "after": "plain",
        },
    ],
}


def read(**changes: Any) -> TableFile:
    return read_table("paper/table", {**deepcopy(TABLE), **changes}, "table.yaml")


def problems(**changes: Any) -> list[str]:
    with pytest.raises(LabError) as refusal:
        read(**changes)
    assert all(problem.startswith("table.yaml: ") for problem in refusal.value.problems)
    return [problem.removeprefix("table.yaml: ") for problem in refusal.value.problems]


def rows(**changes: Any) -> list[dict[str, Any]]:
    """The two rows, the second one changed."""
    first, second = deepcopy(TABLE["rows"])
    return [first, {**second, **changes}]


def test_overrides_come_in_the_order_in_which_the_later_ones_win() -> None:
    table = read()
    assert [row.name for row in table.rows] == ["plain", "RW"]
    row = table.row("RW")
    assert table.overrides_of(row, "desk") == [
        "data=lm1b",
        "model=desk",
        "residual=laurel_rw",
        "residual.vector=true",
    ]
    assert table.overrides_of(row, "gpu") == ["data=lm1b", "residual=laurel_rw"]
    assert [table.shown_name(row, scale) for scale in ("paper", "desk")] == ["RW", "RW, small"]
    assert table.scales["gpu"].seeds == 3 and table.scales["paper"].minutes is None


def test_an_unknown_scale_is_refused_with_the_nearest() -> None:
    with pytest.raises(LabError, match=r"scale=desks: must be one of paper, gpu, desk; did you"):
        read().overrides_of(read().rows[0], "desks")


def test_a_key_that_is_no_text_is_refused() -> None:
    assert problems(**{"rows": [{"name": "plain", True: 1}]}) == [
        "rows.plain.True=1: no such key (there are name, names, overrides, scales, baseline, "
        "after, deeper, paper, note)"
    ]
    assert problems(scales={**TABLE["scales"], True: 1}) == [
        "scales.True: no such scale (there are paper, gpu, desk)"
    ]


def test_all_problems_of_keys_and_types_at_once() -> None:
    scales = {"paper": {"seeds": 0, "on": "x"}, "gpus": {}, "desk": [1]}
    second = {"name": "RW", "overides": ["a=1"], "paper": {"params": 1.5, "loss": "low"}}
    second |= {"names": {"desk": 8}, "scales": {"deks": ["a=1"], "gpu": "a=1"}}
    found = problems(scales=scales, rows=[{"overrides": "a=1"}, second], metrics="x", grid=["k"])
    assert found == [
        "grid=['k']: must be a list of 2: text or null",
        "metrics=x: no such key; did you mean metric? (there are name, title, source, metric, "
        "baseline, overrides, scales, rows, axis, grid, note)",
        "scales.gpus: no such scale; did you mean gpu? (there are paper, gpu, desk)",
        "scales.paper.seeds=0: must be a whole number > 0",
        "scales.gpu: missing; every table has paper, gpu, desk",
        "scales.desk=[1]: must be a section with the keys seeds, overrides, on, minutes",
        "rows.1.name: missing; must be text",
        "rows.1.overrides=a=1: must be a list of text",
        "rows.RW.overides=['a=1']: no such key; did you mean rows.RW.overrides? (there are name, "
        "names, overrides, scales, baseline, after, deeper, paper, note)",
        "rows.RW.scales.deks: no such scale; did you mean desk? (there are paper, gpu, desk)",
        "rows.RW.names.desk=8: must be text",
        "rows.RW.scales.gpu=a=1: must be a list of text",
        'rows.RW.paper.params=1.5: must be text, in quotes, as the paper prints it: "1.5"',
        "rows.RW.paper.loss=low: 'low' is no number as papers print them, such as 18.06 ± 0.01",
    ]


def test_all_problems_of_what_keys_say_of_each_other_at_once() -> None:
    found = problems(
        metric="test_los",
        baseline="plan",
        overrides=["seed=3", "model.layers"],
        rows=[*rows(baseline="none", after="RW2"), {"name": "RW"}],
    )
    assert [line.partition(";")[0].partition(" (there")[0] for line in found] == [
        "metric=test_los: no such metric",
        "rows.RW: 2 rows have this name",
        "baseline=plan: no such row",
        "rows.RW.baseline=none: no such row",
        "rows.RW.after=RW2: no such row",
        "overrides: seed=3: the command gives seed to each run",
        "overrides: model.layers: must be an override, KEY=VALUE",
    ]
    assert "did you mean plain? (there are plain, RW, RW)" in found[2]


def test_a_row_cannot_start_from_itself_in_turn() -> None:
    circle = {"a": "c", "b": "a", "c": "b", "d": "a", "plain": None}
    found = problems(rows=[{"name": name, "after": after} for name, after in circle.items()])
    assert found == [
        "rows.a.after=c: that row starts, in turn, from a",
        "rows.b.after=a: that row starts, in turn, from b",
        "rows.c.after=b: that row starts, in turn, from c",
    ]
    chain = {"plain": None, "a": "plain", "b": "a"}
    read(rows=[{"name": name, "after": after} for name, after in chain.items()])


@pytest.mark.parametrize("content", [[], "text", None])
def test_what_is_no_table_is_refused(content: Any) -> None:
    with pytest.raises(LabError, match=r"table\.yaml: must be a section with the keys title,"):
        read_table("paper/table", content, "table.yaml")


def test_a_table_in_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(TABLE))
    assert load_table(str(file)).name == f"{tmp_path.name}/mine"
    file.write_text(yaml.safe_dump(TABLE).replace("'on':", "on:"))
    assert load_table(str(file)).scales["paper"].on == "64 TPUs"
    file.write_text("title: [")
    with pytest.raises(LabError, match=r"mine\.yaml: cannot be read: while parsing"):
        load_table(str(file))
    with pytest.raises(LabError, match=r"nowhere\.yaml: there is no such file"):
        load_table("nowhere.yaml")


def test_reading_tables_imports_neither_torch_nor_hydra() -> None:
    code = (
        "import sys; from residual_lab.reproduce.table_file import load_table, table_names; "
        "[load_table(name) for name in table_names()]; "
        "sys.exit(' '.join({'torch', 'hydra', 'omegaconf', 'scipy'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
