"""What every section of a configuration has in common, and how a rule is stated as an error."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Json = Any
"""What `json.loads` returns."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=100)]
"""A name that is used in paths, metric keys and tensor names."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Frozen and strict: an unknown key or a value of another type is a fault, never a guess."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def broken_rule(found: Any, rule: str, fix: str, *where: str | int) -> PydanticCustomError:
    """The error that a validator raises: `where` is the path below the section that has the validator."""
    return PydanticCustomError(
        "broken_rule", "{rule}", {"found": repr(found), "rule": rule, "fix": fix, "where": list(where)}
    )
