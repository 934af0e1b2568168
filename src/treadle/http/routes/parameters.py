"""The query parameters that several resources share."""

from __future__ import annotations

from typing import get_args

from treadle.http.endpoints import Parameter
from treadle.wire.responses import Include

_INCLUDE: dict[str, object] = {"type": "array", "items": {"type": "string", "enum": list(get_args(Include))}}

INCLUDE = (
    Parameter(name="include[]", schema=_INCLUDE, description="Data to show that is left out otherwise."),
    Parameter(name="include", schema=_INCLUDE, description="The same, without brackets."),
)
AFTER = Parameter(name="after", schema={"type": "string"}, description="Show what follows this id.")
BEFORE = Parameter(name="before", schema={"type": "string"}, description="Show what comes before this id.")
ORDER = Parameter(name="order", schema={"type": "string", "enum": ["asc", "desc"], "default": "desc"})


def limit(default: int) -> Parameter:
    return Parameter(name="limit", schema={"type": "integer", "minimum": 1, "maximum": 100, "default": default})
