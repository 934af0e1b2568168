"""Typed results to responses, and faults to the error envelope."""

from __future__ import annotations

import logging
import time
from typing import Protocol, runtime_checkable

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.errors import Internal, ServerError
from treadle.wire.base import encode

log = logging.getLogger("treadle.http")

JSON = "application/json"

_YOUNG_SECONDS, _SOON_MS, _LATER_MS = 10, 200, 1000


@runtime_checkable
class Pollable(Protocol):
    """What clients ask for again until it is no longer in progress."""

    @property
    def status(self) -> str: ...

    @property
    def created_at(self) -> int: ...


def reply(value: msgspec.Struct | msgspec.Raw, status: int = 200) -> Response:
    return Response(encode(value), status, media_type=JSON)


def pollable(value: msgspec.Struct) -> Response:
    """A reply that tells SDKs, while the thing is in progress, after how many milliseconds to ask again."""
    answer = reply(value)
    if isinstance(value, Pollable) and value.status == "in_progress":
        young = time.time() - value.created_at < _YOUNG_SECONDS
        answer.headers["openai-poll-after-ms"] = str(_SOON_MS if young else _LATER_MS)
    return answer


def refusal(fault: ServerError) -> Response:
    """The error envelope. SDKs retry a 409 on their own, which a lock is worth and nothing else of ours."""
    return Response(encode(fault.envelope()), fault.status, headers=fault.headers, media_type=JSON)


def refused_handshake(fault: ServerError) -> ASGIApp:
    """The same to a client that wants a WebSocket; a bare 403 where what runs the app cannot send more than that."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if "websocket.http.response" in scope.get("extensions", {}):
            await refusal(fault)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    return answer


def internal(path: str) -> Internal:
    """A bug of ours, met while `path` was served."""
    return Internal.logged(log, path)
