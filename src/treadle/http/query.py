"""Query parameters: typed, with `include[]` and `include` alike (contract §1.1). A bad value is a 400 naming it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from starlette.requests import Request

from treadle.errors import InvalidRequest
from treadle.ports import Order
from treadle.wire.responses import Include

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_INCLUDES = frozenset(get_args(Include))


def integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not _INTEGER.fullmatch(text):
        raise InvalidRequest(f"'{name}' must be an integer.", param=name, code="invalid_type")
    value = int(text)
    if value < low:
        raise InvalidRequest(f"'{name}' must be at least {low}.", param=name, code="integer_below_min_value")
    if value > high:
        raise InvalidRequest(f"'{name}' must be at most {high}.", param=name, code="integer_above_max_value")
    return value


def order(request: Request) -> Order:
    match request.query_params.get("order") or "desc":
        case "asc":
            return "asc"
        case "desc":
            return "desc"
        case _:
            raise InvalidRequest("'order' must be 'asc' or 'desc'.", param="order")


def text(request: Request, name: str) -> str | None:
    value = request.query_params.get(name)
    if value is not None and ("\x00" in value or len(value) > 512):
        raise InvalidRequest(f"Invalid value for '{name}'.", param=name)
    return value or None


def boolean(request: Request, name: str) -> bool:
    match (request.query_params.get(name) or "false").lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case _:
            raise InvalidRequest(f"'{name}' must be true or false.", param=name, code="invalid_type")


def include(request: Request) -> Sequence[str]:
    found = [*request.query_params.getlist("include"), *request.query_params.getlist("include[]")]
    for value in found:
        if value not in _INCLUDES:
            raise InvalidRequest(f"Invalid value for 'include': '{value[:64]}'.", param="include")
    return found
