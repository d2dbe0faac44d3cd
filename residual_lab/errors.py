"""Errors that a user can act on."""

import difflib
from collections.abc import Iterable, Mapping


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

    Of dotted keys the last part may be all that was given (``lr`` for ``optim.lr``), or all
    that is wrong (``optim.lrr``).
    """
    choices = [choice for choice in choices if "." in choice or "." not in word]
    section, dot, last = word.rpartition(".")
    by_last = {choice.rpartition(".")[2]: choice for choice in choices}
    siblings = {c.removeprefix(section + dot): c for c in choices if c.startswith(section + dot)}
    near = [choice for choice in choices if "." in choice and choice.rpartition(".")[2] == last]
    near = near or _close(last, siblings) or _close(last, by_last)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _close(word: str, choices: Mapping[str, str]) -> list[str]:
    longer = [choice for name, choice in choices.items() if len(word) > 2 and name.startswith(word)]
    close = difflib.get_close_matches(word, choices, n=2, cutoff=0.7)
    return longer or [choices[name] for name in close]
