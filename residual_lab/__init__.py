"""residual-lab: does this residual connection really help, and what does it cost?"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from residual_lab.config import compose
    from residual_lab.models import build_model

__version__ = "0.1.0"
__all__ = ["build_model", "compose"]


def __getattr__(name: str) -> Any:
    """Import lazily, so that ``--help`` and listing need no torch."""
    if name == "compose":
        from residual_lab.config import compose

        return compose
    if name == "build_model":
        from residual_lab.models import build_model

        return build_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
