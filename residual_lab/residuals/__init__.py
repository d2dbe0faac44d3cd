"""The subject: residual connections, one file each (a family may share one).

A connection is found by import. ``connection: laurel:Laurel`` is the class ``Laurel`` of
``residual_lab/residuals/laurel.py``; ``package.module:Class`` and ``path/to/file.py:Class``
name classes of your own.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from residual_lab.errors import ConfigError
from residual_lab.residuals.connection import Connection, Layer

__all__ = ["Connection", "Layer", "build_connection", "find_connection"]


def find_connection(spec: str) -> type[Connection]:
    """Return the class that ``spec`` (``module:Class`` or ``file.py:Class``) names.

    Raises :class:`ConfigError` when there is none.
    """
    module_name, colon, class_name = spec.rpartition(":")
    if not colon:
        raise ConfigError(f"residual.connection={spec}: expected module:Class or file.py:Class")
    found = getattr(_import(module_name, spec), class_name, None)
    if not (isinstance(found, type) and issubclass(found, Connection)):
        raise ConfigError(
            f"residual.connection={spec}: {module_name} has no Connection named {class_name!r}"
        )
    return found


def _import(module_name: str, spec: str) -> Any:
    if module_name.endswith(".py"):
        path = Path(module_name).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(f"residual.connection={spec}: there is no file {path}")
        file_spec = importlib.util.spec_from_file_location(path.stem, path)
        assert file_spec is not None and file_spec.loader is not None
        module = importlib.util.module_from_spec(file_spec)
        file_spec.loader.exec_module(module)
        return module
    own = f"{__name__}.{module_name}"
    name = own if importlib.util.find_spec(own) else module_name
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"residual.connection={spec}: {error}; give a module of residual_lab.residuals, "
            "an importable package.module, or a file ending in .py"
        ) from None


def build_connection(spec: str, depth: int, width: int, options: Mapping[str, Any]) -> Connection:
    """Construct the connection ``spec`` for ``depth`` layers of ``width`` features."""
    return find_connection(spec)(depth, width, **options)
