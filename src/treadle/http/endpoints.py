"""An endpoint declared once: route, types and statuses, from which the router and the OpenAPI document are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import ASGIApp

Answer = ASGIApp
Action = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A query or path parameter."""

    name: str
    schema: dict[str, object]
    description: str = ""
    where: str = "query"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method on one path. `body` and `result` are wire types; `statuses` are those besides 200 and the common ones."""

    method: str
    path: str
    name: str
    summary: str
    action: Action
    body: object = None
    body_required: bool = True
    result: object = None
    streams: bool = False
    statuses: tuple[int, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    tags: tuple[str, ...] = field(default=())
