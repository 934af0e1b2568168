"""Wires responses over WebSocket."""

from __future__ import annotations

from treadle.api.remembered import Memories
from treadle.api.responses import ResponseService
from treadle.http.websocket import ResponsesSocket, SocketLimits
from treadle.settings import Settings

SOCKET_PATHS = ("/v1/responses", "/responses")


def responses_socket(service: ResponseService, settings: Settings) -> ResponsesSocket:
    given = settings.websocket
    limits = SocketLimits(
        max_seconds=given.max_seconds,
        max_waiting=given.max_waiting,
        max_lanes=given.max_streams,
        max_frame=settings.server.max_body_bytes,
    )
    return ResponsesSocket(service, Memories(given.memory_bytes), limits)
