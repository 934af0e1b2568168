"""Typed results to responses, and faults to the error envelope."""

from __future__ import annotations

import logging

import msgspec
from starlette.responses import Response

from treadle.errors import Internal, ServerError
from treadle.wire.base import encode

log = logging.getLogger("treadle.http")

JSON = "application/json"


def reply(value: msgspec.Struct | msgspec.Raw, status: int = 200) -> Response:
    return Response(encode(value), status, media_type=JSON)


def refusal(fault: ServerError) -> Response:
    """The error envelope. SDKs retry a 409 on their own, which a lock is worth and nothing else of ours."""
    return Response(encode(fault.envelope()), fault.status, headers=fault.headers, media_type=JSON)


def internal(path: str) -> Internal:
    """A bug of ours, met while `path` was served."""
    return Internal.logged(log, path)
