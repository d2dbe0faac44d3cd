"""Checks of a composed configuration; every problem at once, a line each."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from residual_lab.config.schema import Config
from residual_lab.errors import ConfigError


def validate(plain: Mapping[str, Any]) -> Config:
    """Return the typed configuration or raise :class:`ConfigError` with all problems."""
    try:
        config = Config.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(*map(_line, error.errors())) from None
    problems = list(conflicts(config))
    if problems:
        raise ConfigError(*problems)
    return config


def _line(error: Any) -> str:
    key = ".".join(str(part) for part in error["loc"])
    return f"{key}={error['input']!r}: {error['msg']}"


def conflicts(config: Config) -> Iterator[str]:
    """Yield a line for each pair of keys that do not go together."""
    return iter(())
