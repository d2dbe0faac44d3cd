"""Errors that a user can act on."""


class LabError(Exception):
    """Something the user can mend. The command line prints it, one line a problem, and exits 2."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class ConfigError(LabError):
    """A configuration that cannot run: each problem names the key, the value and the choices."""


class DataError(LabError):
    """A corpus or tokenizer that cannot be read: the message says what to do."""
