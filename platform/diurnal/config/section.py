"""What every section of a configuration has in common, and how a rule is stated as an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Json = Any
"""What `json.loads` returns."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$", max_length=100)]
"""A name that is used in paths, metric keys and tensor names."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Broken:
    """A cross-field rule that does not hold; `where` is the path below the section that has the rule."""

    found: Any
    rule: str
    fix: str
    where: tuple[str | int, ...]


S = TypeVar("S")


def rule(method: Callable[[S], Iterator[Broken]]) -> Callable[[S], Iterator[Broken]]:
    """Marks a method of a section, named as the sentence that must hold, that yields what breaks it."""
    method.__dict__["is_rule"] = True
    return method


class Section(BaseModel):
    """Frozen and strict: an unknown key or a value of another type is a fault, never a guess."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_validator(mode="after")
    def _all_rules_hold(self) -> Self:
        methods = [m for cls in type(self).__mro__ for m in vars(cls).values() if getattr(m, "is_rule", False)]
        broken = [fault for method in methods for fault in method(self)]
        if broken:
            raise PydanticCustomError("broken_rules", "{text}", {"text": broken[0].rule, "broken": broken})
        return self
