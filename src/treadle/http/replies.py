"""Typed results to responses, and faults to the error envelope."""

from __future__ import annotations

import logging

import msgspec
from starlette.responses import Response

from treadle.errors import Internal, ServerError
from treadle.ids import new_id
from treadle.wire.base import encode

log = logging.getLogger("treadle.http")

JSON = "application/json"


def reply(value: msgspec.Struct | msgspec.Raw, status: int = 200) -> Response:
    return Response(encode(value), status, media_type=JSON)


def refusal(fault: ServerError) -> Response:
    """The error envelope. SDKs retry a 409 on their own, which a lock is worth and nothing else of ours."""
    return Response(encode(fault.envelope()), fault.status, headers=fault.headers, media_type=JSON)


def internal(path: str) -> Internal:
    """A bug of ours, logged under an id that the caller is given."""
    number = new_id("err")
    log.exception("internal error %s at %.200r", number, path)  # noqa: LOG004 - called while one is handled
    return Internal(f"Something went wrong inside the server. The log has the details under {number}.")
