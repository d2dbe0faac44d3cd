"""From overrides to a validated configuration: Hydra composes, pydantic checks."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residual_lab.config.conflicts import unreadable
from residual_lab.config.data import SOURCES
from residual_lab.config.models import FAMILIES
from residual_lab.config.schema import Config
from residual_lab.config.validation import validate
from residual_lab.errors import ConfigError

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.types import RunMode
    from omegaconf import DictConfig


def conf_directory() -> Path:
    """The folder of YAML files: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def compose(
    overrides: Sequence[str] = (),
    *,
    config_dir: str | Path | None = None,
    config_name: str = "config",
) -> Config:
    """Return the validated configuration for Hydra ``overrides`` such as ``residual=laurel_rw``.

    ``config_dir`` is a folder of further groups and choices, looked in after the package's own;
    ``config_name`` is the primary configuration. Raises
    :class:`~residual_lab.errors.ConfigError`, which lists every problem.
    """
    with started_hydra(config_dir) as hydra:
        return compose_with(hydra, overrides, config_name)


@contextmanager
def started_hydra(config_dir: str | Path | None = None) -> Iterator["Hydra"]:
    """Hydra with this package's configurations; its global state is put back at the end.

    Raises ConfigError when ``config_dir`` is no folder.
    """
    from hydra import initialize_config_dir
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.global_hydra import GlobalHydra

    own = str(conf_directory())
    path = create_config_search_path(own)
    if config_dir is not None:
        folder = Path(config_dir).expanduser().absolute()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir={config_dir}: there is no folder {folder}")
        path.prepend("command-line", f"file://{folder}", anchor="schema")
    with (
        _logging_put_back(),
        initialize_config_dir(own, job_name="residual-lab", version_base="1.3"),
    ):
        GlobalHydra.instance().clear()
        yield Hydra.create_main_hydra2("residual-lab", path)


@contextmanager
def _logging_put_back() -> Iterator[None]:
    """Hydra's ``--info`` gives the root logger a handler, and lets everything through."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def compose_with(hydra: "Hydra", overrides: Sequence[str], config_name: str = "config") -> Config:
    """Compose and validate; the problems of both are reported together."""
    from residual_lab.config.overrides import refused

    problems: Sequence[str] = ()
    try:
        composed = compose_unchecked(hydra, overrides, config_name)
    except ConfigError as error:
        problems, accepted = refused(hydra, overrides, config_name)
        if not problems:
            raise
        composed = compose_unchecked(hydra, accepted, config_name)
        try:
            validate(resolved(composed))
        except ConfigError as further:
            problems = [*problems, *further.problems]
        raise ConfigError(*problems) from error
    return validate(resolved(composed))


def compose_unchecked(
    hydra: "Hydra",
    overrides: Sequence[str],
    config_name: str = "config",
    run_mode: "RunMode | None" = None,
) -> "DictConfig":
    """Compose without validation; what Hydra refuses becomes a ConfigError."""
    from hydra.errors import HydraException
    from hydra.types import RunMode
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        return hydra.compose_config(config_name, list(overrides), run_mode=run_mode or RunMode.RUN)
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        raise ConfigError(_one_line(error)) from error


def resolved(composed: "DictConfig") -> dict[str, Any]:
    """Plain containers without Hydra's own part, interpolations resolved, ``???`` left."""
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    composed = composed.copy()
    with open_dict(composed):
        composed.pop("hydra", None)
    try:
        plain = OmegaConf.to_container(composed, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_unreadable(composed) or _one_line(error)) from None
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _unreadable(composed: "DictConfig") -> str | None:
    """Why a key of the model may refer to one that its data lack: they do not go together."""
    from omegaconf import OmegaConf

    family = OmegaConf.select(composed, "model.family", default="decoder")
    source = OmegaConf.select(composed, "data.source")
    return unreadable(family, source) if family in FAMILIES and source in SOURCES else None


def _one_line(error: BaseException) -> str:
    cause = error.__cause__ if not str(error) and error.__cause__ else error
    key = getattr(cause, "full_key", None)
    text = getattr(cause, "msg", None) if key else str(cause)
    line = " ".join((text or "").split("full_key:")[0].split()) or type(cause).__name__
    return f"{key}: {line}" if key else line
