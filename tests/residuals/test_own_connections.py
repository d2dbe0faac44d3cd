"""Connections in files and modules of the user's own, whole and broken."""

from pathlib import Path

import pytest

from residual_lab.errors import ConfigError
from residual_lab.residuals import find_connection

WHOLE = "from residual_lab.residuals.plain import Plain\n\n\nclass Mine(Plain):\n    pass\n"
BROKEN = {
    "syntax": ("x = 1\nclass Mine(:\n", r"line 2: SyntaxError: "),
    "absent": ("x = 1\n\nimport no_such_thing\n", r"line 3: ModuleNotFoundError: .*no_such_thing"),
    "name": ("from residual_lab import no_such\n", r"line 1: ImportError: .*no_such"),
    "other": ("x = 1\ny = x / 0\n", r"line 2: ZeroDivisionError: "),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``own_PLACE`` that can be imported."""
    package = tmp_path / f"own_{tmp_path.name}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def test_both_ways_to_name_one(folder: Path) -> None:
    (folder / "whole.py").write_text(WHOLE)
    for spec in (f"{folder}/whole.py:Mine", f"{folder.name}.whole:Mine"):
        assert find_connection(spec).__name__ == "Mine"


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("form", ["file", "module"])
def test_a_broken_one_is_refused_in_one_line(folder: Path, fault: str, form: str) -> None:
    """It names the file, the line and the error."""
    text, message = BROKEN[fault]
    file = folder / f"{fault}.py"
    file.write_text(text)
    source = str(file) if form == "file" else f"{folder.name}.{fault}"
    with pytest.raises(ConfigError, match=f"{file}, {message}") as caught:
        find_connection(f"{source}:Mine")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"residual.connection={source}:Mine: ")


@pytest.mark.parametrize("module", ["nowhere", "nowhere.at_all"])
def test_a_module_that_is_not_there(module: str) -> None:
    with pytest.raises(ConfigError, match=r"No module named .*; give a module of residual_lab"):
        find_connection(f"{module}:Mine")
