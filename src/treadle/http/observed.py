"""Requests, watched: around the server where somebody watches, and not there at all where nobody does."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.ports import Observer

_UNWATCHED = frozenset({"/v1/health", "/v1/health/", "/metrics"})
"""Asked every few seconds by those who watch in another way."""


class Observed:
    """Tells the observer of every HTTP request when it comes and when its answer has been sent, streams included."""

    def __init__(self, app: ASGIApp, observer: Observer) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _UNWATCHED:
            await self._app(scope, receive, send)
            return
        status: int | None = None
        complete = False

        async def seen(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                complete = True
            await send(message)

        with self._observer.request(scope["method"], scope["headers"]) as watch:
            try:
                await self._app(scope, receive, seen)
            finally:
                # The router leaves the resource there that it found.
                watch.answered(getattr(scope.get("endpoint"), "path", ""), status, complete=complete)
