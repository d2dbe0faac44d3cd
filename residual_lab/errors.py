"""Errors that a user can act on."""

import difflib
from collections.abc import Iterable


class LabError(Exception):
    """Something the user can mend. The command line prints it, one line a problem, and exits 2."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ConfigError(LabError):
    """A configuration that cannot run: each problem names the key, the value and the choices."""


class DataError(LabError):
    """A corpus or tokenizer that cannot be read: the message says what to do."""


def suggestion(word: str, choices: Iterable[str]) -> str:
    """``; did you mean …?`` with the nearest of ``choices``, or nothing where none is near.

    Of dotted keys the last part may be all that was given: ``lr`` is near ``optim.lr``.
    """
    choices = [choice for choice in choices if "." in choice or "." not in word]
    last = word.rpartition(".")[2]
    near = [choice for choice in choices if "." in choice and choice.rpartition(".")[2] == last]
    near = near or difflib.get_close_matches(word, choices, n=3, cutoff=0.7)
    if not near:
        by_last = {choice.rpartition(".")[2]: choice for choice in choices}
        near = [by_last[part] for part in difflib.get_close_matches(last, by_last, n=1)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
