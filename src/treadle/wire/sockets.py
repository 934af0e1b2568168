"""What goes over a WebSocket connection besides the events of responses (contract §9), and what the app and the server
that runs it tell each other beyond ASGI."""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from treadle.errors import ErrorBody, ServerError
from treadle.wire.responses import CreateResponse

STOPPING = "websocket.stopping"
"""The app receives a message of this type when the server is about to stop, so that a running response can end. Where
what runs the app sends none, connections are just lost then."""

FRAMES = "websocket.send.frames"
"""The app may send a message of this type where the scope's extensions have the same key. Its `data` are whole frames:
many events are many frames, and each on its own way through ASGI would cost more than to encode it."""

_HEAD = b"\x81\x7e\0\0"
_length = struct.Struct("!H")

MAX_STREAM_ID = 256
StreamId = Annotated[str, Meta(max_length=MAX_STREAM_ID)]


class ResponseCreate(CreateResponse, kw_only=True):
    """Asks for a response. `stream`, `stream_options` and `background` mean nothing here and are ignored."""

    type: str = ""
    stream_id: StreamId | None = None
    """The lane: requests of one lane are answered in order, and those of different lanes side by side."""
    generate: bool | None = None
    """False: nothing is asked of a model; the id of the response can be continued."""


class FrameHead(msgspec.Struct):
    """What can be said of a frame that is not a valid request. Its fields may hold anything."""

    type: object = None
    stream_id: object = None
    previous_response_id: object = None


class FrameErrorBody(ErrorBody):
    """`headers` are those of the HTTP answer that say when to try again."""

    headers: dict[str, str] | UnsetType = UNSET


class FrameError(msgspec.Struct, kw_only=True, tag_field="type", tag="error", omit_defaults=True):
    """A failure that belongs to no running response."""

    status: int
    error: FrameErrorBody
    stream_id: str | None = None


def told(fault: ServerError) -> FrameErrorBody:
    body = fault.body()
    retry = {name: value for name, value in fault.headers.items() if name.lower().startswith("retry-after")}
    return FrameErrorBody(body.message, body.type, body.param, body.code, retry or UNSET)


def begin_text(frames: bytearray) -> int:
    """Begins a message in one frame, as servers send it: unmasked (RFC 6455 §5.2). What follows is its text."""
    start = len(frames)
    frames += _HEAD
    return start


def end_text(frames: bytearray, start: int) -> None:
    """Ends the message that began at `start`: only now is its length known."""
    size = len(frames) - start - len(_HEAD)
    if 125 < size < 65_536:
        _length.pack_into(frames, start + 2, size)
    elif size < 126:
        frames[start : start + 4] = bytes((0x81, size))
    else:
        frames[start : start + 4] = struct.pack("!BBQ", 0x81, 127, size)
