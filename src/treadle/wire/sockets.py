"""Frames of a WebSocket connection besides the events of responses (contract §9), and a message of ours to the app."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from treadle.errors import ErrorBody
from treadle.wire.responses import CreateResponse

STOPPING = "websocket.stopping"
"""The app receives a message of this type when the server is about to stop, so that a running response can end. Where
what runs the app sends none, connections are just lost then."""

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


class FrameError(msgspec.Struct, kw_only=True, tag_field="type", tag="error", omit_defaults=True):
    """A failure that belongs to no running response."""

    status: int
    error: ErrorBody
    stream_id: str | None = None
