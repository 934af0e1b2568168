"""The ASGI app: routes, and around them request ids, the error envelope, and CORS where configured."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType

from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treadle.errors import InvalidRequest, MethodNotAllowed, NotFound, ServerError, Stopping
from treadle.http.bodies import Paced
from treadle.http.endpoints import Action, Endpoint
from treadle.http.replies import internal, refusal, refused_handshake
from treadle.ids import new_id

log = logging.getLogger("treadle.http")

Lifespan = Callable[[], Awaitable[None]]


class Server:
    """Dispatches to endpoints. Every answer has an `x-request-id`; every fault is the error envelope."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        start: Lifespan,
        stop: Lifespan,
        guard: Callable[[ASGIApp], ASGIApp] = lambda app: app,
        to_come: Mapping[tuple[str, str], str] = MappingProxyType({}),
        body_seconds: float = 300.0,
        sockets: Mapping[str, ASGIApp] = MappingProxyType({}),
    ) -> None:
        """`guard` is put around the routes, inside of what every answer gets. `to_come` are methods and paths that are
        refused with a message, because a route for others would take them for its own. A body has `body_seconds`.
        `sockets` are the paths that take WebSockets."""
        self._router = Router(_routes(endpoints), redirect_slashes=False)
        self._to_come = to_come
        self._body_seconds = body_seconds
        self._sockets = sockets
        self._guarded = guard(self._routed)
        self._start = start
        self._stop = stop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, begun = False, time.perf_counter()
        request_id = _request_id(scope)

        async def tagged(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                elapsed = b"%d" % ((time.perf_counter() - begun) * 1000)
                message = {
                    **message,
                    "headers": [
                        *message.get("headers", ()),
                        (b"x-request-id", request_id),
                        (b"openai-processing-ms", elapsed),
                    ],
                }
            await send(message)

        path = scope["path"]
        scope["app"] = self  # tells Starlette's router to raise rather than to answer in plain text
        if len(path) > 1 and path.endswith("/"):
            scope["path"] = path.rstrip("/") or "/"
        try:
            await self._guarded(scope, Paced(scope, receive, self._body_seconds), tagged)
        except ServerError as fault:
            answer: ASGIApp = refusal(fault)
        except HTTPException as error:
            answer = refusal(_from_starlette(error, scope))
        except ClientDisconnect:
            return
        except asyncio.CancelledError:
            # Responses that watch their client end in their own way; whatever else still runs is told here.
            if started or (task := asyncio.current_task()) is None:
                raise
            task.uncancel()
            answer = refusal(Stopping())
        except Exception:
            if started:
                raise
            answer = refusal(internal(path))
        else:
            return
        if not started:
            await answer(scope, receive, tagged)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        undecided = True
        request_id = _request_id(scope)

        async def tagged(message: Message) -> None:
            nonlocal undecided
            undecided = False
            if message["type"] in ("websocket.accept", "websocket.http.response.start"):
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", request_id)]}
            await send(message)

        try:
            await self._guarded(scope, receive, tagged)
        except ServerError as fault:
            answer = refused_handshake(fault)
        except Exception:
            if not undecided:
                raise
            answer = refused_handshake(internal(scope["path"]))
        else:
            return
        await answer(scope, receive, tagged)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            if (socket := self._sockets.get(scope["path"].rstrip("/"))) is None:
                raise NotFound(f"No WebSocket is to be had at {scope['path'][:200]}; there is one at /v1/responses.")
            await socket(scope, receive, send)
            return
        if (message := self._to_come.get((scope["method"], scope["path"]))) is not None:
            raise InvalidRequest(message)
        await self._router(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self._start()
        except Exception as error:  # whatever it is, it is said, and the process ends
            log.debug("the start failed", exc_info=True)
            await send({"type": "lifespan.startup.failed", "message": str(error) or type(error).__name__})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Lets pages of `origins` call the API from a browser."""
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"], expose_headers=["x-request-id"]
    )


class _Resource:
    """All methods of one path. A class, because Starlette treats a function as an endpoint of its own kind."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.actions: dict[str, Action] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        action = self.actions.get("GET" if method == "HEAD" else method)
        if action is None:
            allowed = [*self.actions, *(["HEAD"] if "GET" in self.actions else [])]
            raise MethodNotAllowed(
                f"{method[:32]} is not allowed on {scope['path'][:200]}.", headers={"allow": ", ".join(sorted(allowed))}
            )
        answer = await action(Request(scope, receive))
        await answer(scope, receive, send)


def _routes(endpoints: Sequence[Endpoint]) -> list[Route]:
    """One route per path, those with fixed words before those that take any."""
    resources = {endpoint.path: _Resource(endpoint.path) for endpoint in endpoints}
    for endpoint in endpoints:
        resources[endpoint.path].actions[endpoint.method] = endpoint.action
    ordered = sorted(resources.items(), key=lambda found: ("{" in found[0], found[0]))
    return [Route(path, resource) for path, resource in ordered]


def _request_id(scope: Scope) -> bytes:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and 0 < len(value) <= 128 and value.isascii() and value.decode().isprintable():
            return bytes(value)
    return new_id("req").encode()


def _from_starlette(error: HTTPException, scope: Scope) -> ServerError:
    if error.status_code == 404:
        path = scope["path"]
        where = "" if path.startswith("/v1/") else " The API is under /v1 and described at /docs."
        return NotFound(f"There is nothing at {path[:200]}.{where}")
    return InvalidRequest(error.detail)
