"""``residual-lab list``."""

import json
from pathlib import Path

import pytest

from residual_lab.cli import main
from residual_lab.commands.list import KINDS, connection_facts
from residual_lab.config import conf_directory


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, str]]:
    assert main(["list", *arguments, "format=json"]) == 0
    rows: list[dict[str, str]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


@pytest.mark.parametrize(("kind", "group"), KINDS.items())
def test_every_file_of_a_group_is_listed_with_a_description(
    kind: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = listed(capsys, kind)
    files = {file.stem for file in (conf_directory() / group).glob("*.yaml")}
    assert files and {row["name"] for row in rows} == files
    assert all(row["formula" if kind == "residuals" else "what"] for row in rows)


def test_tables_are_those_of_reproduce(capsys: pytest.CaptureFixture[str]) -> None:
    rows = listed(capsys, "tables")
    assert "laurel/c4_ablation" in [next(iter(row.values())) for row in rows] and len(rows) == 28


def test_without_a_kind_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert {row["kind"] for row in listed(capsys)} == set(KINDS)


def test_residuals_say_what_their_docstrings_say(capsys: pytest.CaptureFixture[str]) -> None:
    (plain,) = [row for row in listed(capsys, "residuals") if row["name"] == "plain"]
    assert plain["formula"] == plain["equations"] == "x' = x + f(x)"
    assert "arXiv 1603.05027" in plain["paper"]
    assert (plain["parameters"], plain["plain_at"]) == ("0", "always")


def test_one_residual_is_read_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "laurel_rw"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("x' = α·f(x) + β·x")
    assert "bound, alpha, beta" in page and "eq. 1-6" in page


def test_a_terminal_gets_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "residuals"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 150


SOURCE = '''
raise RuntimeError("listing runs no code")

class Mine:
    """A thing.

        x' = x
           + f(x)

    Text.

    Paper: Somebody 2030,
        page 3
    Parameters: 2
    """
'''


def test_a_users_residual_is_read_and_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "residual").mkdir()
    yaml = f"# Mine.\nname: mine\nconnection: {tmp_path}/mine.py:Mine\n"
    (tmp_path / "residual/mine.yaml").write_text(yaml)
    rows = listed(capsys, "residuals", "--config-dir", str(tmp_path))
    (mine,) = [row for row in rows if row["name"] == "mine"]
    assert mine["formula"] == "Mine."
    assert mine["equations"] == "x' = x\n   + f(x)"
    assert mine["paper"] == "Somebody 2030, page 3"
    assert mine["parameters"] == "2"
    assert "plain" in {row["name"] for row in rows}


@pytest.mark.parametrize(
    ("text", "source", "said"),
    [
        ("name: [", "", "broken.yaml: not YAML: "),
        ("connection: {folder}/broken.py:Mine", "class Mine(\n", "broken.py: not Python: line 1: "),
    ],
)
def test_a_users_file_that_cannot_be_read_is_one_line(
    text: str, source: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "residual").mkdir()
    (tmp_path / "residual/broken.yaml").write_text(text.format(folder=tmp_path))
    (tmp_path / "broken.py").write_text(source)
    assert main(["list", "residuals", "--config-dir", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and captured.err.count("\n") == 1 and captured.out == ""


def test_a_class_that_is_not_found_has_no_facts() -> None:
    assert connection_facts("absent:X") == {} == connection_facts("plain:Absent")


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["residual"], "residual: no such kind; did you mean residuals or residual_gates?"),
        (["tabels"], "tabels: no such kind; did you mean tables?"),
        (["laurel_rwx"], "laurel_rwx: no such kind; did you mean laurel_rw"),
        (["laurel_rw", "laurel_lr"], "laurel_rw laurel_lr: one at a time; laurel_rw is a page"),
        (["tables", "models"], "tables: they are not choices of a run; list them alone"),
        (["tables", "model=desk"], "model=desk: only residuals are listed for a model"),
        (["--bogus"], "--bogus: no such option"),
        (["fromat=md"], "fromat=md: no such option"),
        (["format=doc"], "format=doc: no such format"),
        (["laurel_rw", "out=x.md"], "out=x.md: laurel_rw alone is a page of text; leave it out"),
        (["laurel_rw", "model=desk"], "model=desk: laurel_rw alone is a page of text"),
        (["--config-dir", "/absent/x"], "--config-dir=/absent/x: there is no such folder"),
    ],
)
def test_bad_arguments(
    arguments: list[str], start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(start) and captured.out == ""
