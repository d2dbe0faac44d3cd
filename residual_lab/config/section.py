"""What all sections of a configuration have in common."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
NonNegative = Annotated[float, Field(ge=0)]


def absolute(path: str) -> str:
    """The path from the root, so that a saved configuration works from any folder."""
    return str(Path(path).expanduser().absolute())


class Section(BaseModel):
    """Unknown keys are refused; nothing changes after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
