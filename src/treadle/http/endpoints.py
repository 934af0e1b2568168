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
    """One method on one path. `body` and `result` are wire types, `events` is the schema of an event's data.

    `statuses` are those besides `success` and what the document adds by itself: 400 where something is read from the
    request, 403 and 500 everywhere. `passes_refusals`: a model server's refusals come back with their own status.
    """

    method: str
    path: str
    name: str
    summary: str
    action: Action
    body: object = None
    body_required: bool = True
    takes: str = "application/json"
    """The media type of the body. For a form, `body` is its schema."""
    result: object = None
    produces: str = "application/json"
    streams: bool = False
    events: dict[str, object] | None = None
    success: int = 200
    """204: an answer without a body."""
    statuses: tuple[int, ...] = ()
    passes_refusals: bool = False
    parameters: tuple[Parameter, ...] = ()
    tags: tuple[str, ...] = field(default=())
