"""docs/known-failures.md names every failure, and tests that are there and name it too."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
PAGE = (CHECKOUT / "docs/known-failures.md").read_text(encoding="utf-8")
ROWS = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| F")]
NAMED = [
    (row[0].removeprefix("| "), file, name)
    for row in ROWS
    for file, name in re.findall(r"`(tests/\S+\.py)::(\w+)`", row[-1])
]


@cache
def docstrings(file: str) -> dict[str, str]:
    """Of every test in ``file``: its docstring and that of the file."""
    tree = ast.parse((CHECKOUT / file).read_text(encoding="utf-8"))
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    whole = ast.get_docstring(tree) or ""
    return {test.name: f"{whole}\n{ast.get_docstring(test) or ''}" for test in tests}


def test_every_failure_has_one_row_with_a_test() -> None:
    expected = [f"F{number}" for number in range(1, 36)]
    assert [row[0].removeprefix("| ") for row in ROWS] == expected
    assert all(len(row) == 4 for row in ROWS)
    assert {failure for failure, *_ in NAMED} == set(expected)


@pytest.mark.parametrize(("failure", "file", "name"), NAMED)
def test_the_test_is_there_and_names_the_failure(failure: str, file: str, name: str) -> None:
    assert name.startswith("test_")
    assert re.search(rf"\b{failure}\b", docstrings(file)[name])
