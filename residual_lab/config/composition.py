"""From overrides to a validated configuration: Hydra composes, pydantic checks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from residual_lab.config.schema import Config
from residual_lab.config.validation import validate


def conf_directory() -> Path:
    """The folder of YAML files: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def compose(overrides: Sequence[str] = ()) -> Config:
    """Return the validated configuration for Hydra ``overrides`` such as ``residual=laurel_rw``.

    Raises :class:`~residual_lab.errors.ConfigError`, which lists every problem.
    """
    return validate(compose_plain(overrides))


def compose_plain(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose to plain resolved containers, unchecked."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(conf_directory()), version_base="1.3"):
        composed = hydra_compose("config", overrides=list(overrides))
    plain = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
