"""Each format read back by an independent reader, and files written whole."""

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from residual_lab.errors import LabError
from residual_lab.tables import Cell, Column, Table, render
from residual_lab.tables.render import FORMATS, as_text, print_rich

TABLE = Table(
    "Rows & 100%",
    (Column("row", "residual"), Column("val_loss", "val loss", "right"), Column("p", "p", "right")),
    (
        (Cell("plain", "plain"), Cell("3.42 ± 0.03", 3.4216, {"std": 0.03, "n": 5}), Cell("")),
        (Cell("a|b_c", "a|b_c"), Cell("–", None), Cell("< 0.001", 1e-5)),
        (Cell("αβ", "αβ"), Cell("∞", float("inf"), {"std": float("nan"), "n": 1}), Cell("1.00", 1)),
    ),
    ("first note", "50% of $x_1"),
)


def test_csv_has_numbers_under_flat_names_and_nothing_else() -> None:
    rows = list(csv.DictReader(io.StringIO(as_text(TABLE, "csv"))))
    assert list(rows[0]) == ["row", "val_loss", "val_loss_std", "val_loss_n", "p"]
    assert rows[0] == {
        "row": "plain", "val_loss": "3.4216", "val_loss_std": "0.03", "val_loss_n": "5", "p": "",
    }  # fmt: skip
    assert rows[1]["row"] == "a|b_c"
    assert len(rows) == 3


def test_json_is_strict_and_holds_everything() -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(as_text(TABLE, "json"), parse_constant=refuse)
    assert found["columns"] == {"row": "residual", "val_loss": "val loss", "p": "p"}
    assert found["rows"][0]["val_loss"] == {"value": 3.4216, "std": 0.03, "n": 5}
    assert found["rows"][1] == {"row": "a|b_c", "val_loss": None, "p": 1e-5}
    assert found["rows"][2]["val_loss"] == {"value": None, "std": None, "n": 1}
    assert found["notes"] == list(TABLE.notes)


def test_markdown_escapes_bars_and_aligns_numbers() -> None:
    lines = as_text(TABLE, "md").splitlines()
    assert lines[0] == "**Rows & 100%**"
    assert lines[2:5] == [
        "| residual | val loss | p |",
        "|---|---:|---:|",
        "| plain | 3.42 ± 0.03 |  |",
    ]
    assert lines[5].startswith("| a\\|b_c |")
    assert lines[-2:] == ["- first note", "- 50% of $x_1"]


def test_latex_is_escaped_booktabs() -> None:
    text = as_text(TABLE, "latex")
    assert r"\begin{tabular}{lrr}" in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule")] == [1, 1, 1]
    assert r"\caption{Rows \& 100\%}" in text
    assert r"plain & 3.42 $\pm$ 0.03 &  \\" in text
    assert r"a|b\_c" in text
    assert r"$\alpha$$\beta$" in text
    assert r"$<$ 0.001" in text
    assert r"50\% of \$x\_1" in text
    rows = text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]
    assert all(row.count(" & ") == 2 and row.endswith(r"\\") for row in rows)


def on_screen(width: int, table: Table = TABLE) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_rich(table, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_narrow_terminal_gets_the_columns_below_each_other() -> None:
    wide, narrow = on_screen(80), on_screen(22)
    assert sum("residual" in line for line in wide) == 1
    assert sum("residual" in line for line in narrow) == 2
    assert all(len(line) <= 22 for line in narrow)
    for cell in ("3.42 ± 0.03", "< 0.001"):  # whole, not wrapped or cut
        assert any(cell in line for line in narrow)


def test_brackets_are_text_and_not_markup() -> None:
    table = Table.of_text("[bold]", ["Interval"], [["[−0.1, 0.1]"], ["[red]"]], "[/x]")
    text = "\n".join(on_screen(40, table))
    assert all(part in text for part in ("[bold]", "[−0.1, 0.1]", "[red]", "[/x]"))


def test_what_is_not_a_terminal_gets_plain_text_of_any_width(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table.of_text("", ["A", "B"], [["x" * 150, "y" * 150]])
    render(table)
    printed = capsys.readouterr().out
    assert f"{'x' * 150}  {'y' * 150}" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("name", "format"), [("t.md", "md"), ("t.csv", "csv"), ("t.tex", "latex"), ("t.json", "json")]
)
def test_the_ending_of_the_file_chooses_the_format(tmp_path: Path, name: str, format: str) -> None:
    render(TABLE, out=tmp_path / "new" / name)
    assert (tmp_path / "new" / name).read_text() == as_text(TABLE, format)
    render(TABLE, "json", tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text() == as_text(TABLE, "json")


def test_an_unknown_format_is_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(LabError) as refusal:
        render(TABLE, "markdown", tmp_path / "t")
    assert all(format in str(refusal.value) for format in FORMATS)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "file" / "t.md", tmp_path / "folder"):
        with pytest.raises(LabError, match="cannot be written"):
            render(TABLE, "md", out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_row_of_the_wrong_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="row 0 has 1 cells for 2 columns"):
        Table("", (Column("a", "A"), Column("b", "B")), ((Cell("x"),),))
