"""The subject: residual connections, one file each (a family may share one).

A connection is found by import. ``connection: laurel:Laurel`` is the class ``Laurel`` of
``residual_lab/residuals/laurel.py``; ``package.module:Class`` and ``path/to/file.py:Class``
name classes of your own.
"""

import importlib
import importlib.util
import traceback
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
        try:
            file_spec.loader.exec_module(module)
        except Exception as error:
            raise ConfigError(f"residual.connection={spec}: {_where_and_why(error)}") from error
        return module
    try:
        own = f"{__name__}.{module_name}"
        found = "." not in module_name and importlib.util.find_spec(own) is not None
        return importlib.import_module(own if found else module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(
                f"residual.connection={spec}: {error}; give a module of residual_lab.residuals, "
                "an importable package.module, or a file ending in .py"
            ) from None
        raise ConfigError(f"residual.connection={spec}: {_where_and_why(error)}") from error


def _where_and_why(error: Exception) -> str:
    """In one line: the place in the file that could not be imported, and the error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    for frame in traceback.extract_tb(error.__traceback__):
        # Deeper frames may be those of a library, or of the machinery of imports.
        if frame.name == "<module>" and not frame.filename.startswith("<"):
            place = frame
    reason = " ".join(str(error).split())
    return f"{place.filename}, line {place.lineno}: {type(error).__name__}: {reason}"


def build_connection(spec: str, depth: int, width: int, options: Mapping[str, Any]) -> Connection:
    """Construct the connection ``spec`` for ``depth`` layers of ``width`` features."""
    return find_connection(spec)(depth, width, **options)
