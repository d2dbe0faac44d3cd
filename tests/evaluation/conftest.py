"""The tiny runs of the tests of training, and commands that are refused."""

from collections.abc import Callable

import pytest

from residual_lab.cli import main
from residual_lab.run_directory import RunDirectory
from tests.training.conftest import Lab, lab, signal_handlers, straight

__all__ = ["lab", "signal_handlers", "straight"]

Refused = Callable[[str, list[str]], str]


@pytest.fixture
def refused(lab: Lab, straight: RunDirectory, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Give a command arguments, {run} a finished run, {new} one not begun; return its one line."""
    paths = {"run": straight.path, "new": lab.run().path}

    def call(command: str, arguments: list[str]) -> str:
        assert main([command, *(a.format(**paths) for a in arguments)]) == 2
        captured = capsys.readouterr()
        assert captured.err.count("\n") == 1
        assert captured.out == ""
        return captured.err

    return call
