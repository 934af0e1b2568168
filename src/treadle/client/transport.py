"""The app as a transport of the HTTP library under the `openai` package: httpx2 from 3.0 on, httpx before.

Imported on first use only, since both packages are optional.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import TYPE_CHECKING, TypeVar

from openai import DefaultHttpxClient
from starlette.types import ASGIApp, Scope

from treadle.client.exchange import BrokenOff, Exchange, Headers
from treadle.client.life import Background

if TYPE_CHECKING:
    import httpx2 as http
else:
    # Not by trying imports: both may be installed, and only the one under `openai` fits it.
    _kind = next(kind for kind in DefaultHttpxClient.__mro__ if kind.__module__.split(".")[0] in ("httpx2", "httpx"))
    http = sys.modules[_kind.__module__.split(".")[0]]

T = TypeVar("T")

GRACE_SECONDS = 5.0
"""How long requests that their client has left may take to end when the transport closes."""


class Requests:
    """The exchanges that run in one event loop. `patience` is how many seconds to wait for the app's next word."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._running: dict[asyncio.Task[None], Exchange] = {}

    async def begin(
        self, scope: Scope, body: AsyncIterator[bytes], patience: float | None
    ) -> tuple[Exchange, int, Headers]:
        exchange = Exchange(self._app, scope, body)
        task = exchange.start()
        self._running[task] = exchange
        task.add_done_callback(self._running.pop)
        async with asyncio.timeout(patience):
            status, headers = await exchange.head()
        return exchange, status, headers

    async def read(self, exchange: Exchange, patience: float | None) -> bytes:
        async with asyncio.timeout(patience):
            return await exchange.read()

    async def close(self) -> None:
        """Leaves what still runs, lets it end, and then stops it."""
        for exchange in self._running.values():
            exchange.leave()
        if self._running:
            _, late = await asyncio.wait(set(self._running), timeout=GRACE_SECONDS)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


class AsyncAppTransport(http.AsyncBaseTransport):
    """Runs requests in the event loop it was made in. Closing a response early is a disconnect to the app."""

    def __init__(self, app: ASGIApp) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests = Requests(app)

    async def handle_async_request(self, request: http.Request) -> http.Response:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("This client belongs to the event loop it was made in; make one in each loop.")
        assert isinstance(request.stream, http.AsyncByteStream)
        patience = _patience(request)
        try:
            exchange, status, headers = await self._requests.begin(_scope(request), aiter(request.stream), patience)
        except (TimeoutError, BrokenOff) as fault:
            raise _translated(fault, request) from fault
        body = _AsyncBody(self._requests, exchange, request, patience)
        return http.Response(status, headers=headers, stream=body, extensions={"http_version": b"HTTP/1.1"})

    async def aclose(self) -> None:
        await self._requests.close()


class _AsyncBody(http.AsyncByteStream):
    def __init__(self, requests: Requests, exchange: Exchange, request: http.Request, patience: float | None) -> None:
        self._requests = requests
        self._exchange = exchange
        self._request = request
        self._patience = patience

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while part := await self._requests.read(self._exchange, self._patience):
                yield part
        except (TimeoutError, BrokenOff) as fault:
            raise _translated(fault, self._request) from fault

    async def aclose(self) -> None:
        self._exchange.leave()


class AppTransport(http.BaseTransport):
    """Runs requests in the event loop of a background thread; usable from any number of threads at once."""

    def __init__(self, app: ASGIApp, background: Background) -> None:
        self._requests = Requests(app)
        self._background = background

    def handle_request(self, request: http.Request) -> http.Response:
        if self._background.is_current():
            raise RuntimeError("The client was called from inside the app's event loop, which would wait for itself.")
        assert isinstance(request.stream, http.SyncByteStream)
        patience = _patience(request)
        # Read here: the caller's iterator may block, and must not in the app's event loop.
        body = _parts(b"".join(request.stream))
        begun = self._requests.begin(_scope(request), body, patience)
        exchange, status, headers = self._ask(begun, request)
        stream = _Body(self, exchange, request, patience)
        return http.Response(status, headers=headers, stream=stream, extensions={"http_version": b"HTTP/1.1"})

    def read(self, exchange: Exchange, request: http.Request, patience: float | None) -> bytes:
        return self._ask(self._requests.read(exchange, patience), request)

    def leave(self, exchange: Exchange) -> None:
        self._background.call(exchange.leave)

    def close(self) -> None:
        self._background.run(self._requests.close())

    def _ask(self, work: Coroutine[None, None, T], request: http.Request) -> T:
        try:
            return self._background.run(work)
        except (TimeoutError, BrokenOff) as fault:
            raise _translated(fault, request) from fault


class _Body(http.SyncByteStream):
    def __init__(
        self, transport: AppTransport, exchange: Exchange, request: http.Request, patience: float | None
    ) -> None:
        self._transport = transport
        self._exchange = exchange
        self._request = request
        self._patience = patience

    def __iter__(self) -> Iterator[bytes]:
        while part := self._transport.read(self._exchange, self._request, self._patience):
            yield part

    def close(self) -> None:
        self._transport.leave(self._exchange)


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    if body:
        yield body


def _scope(request: http.Request) -> Scope:
    path, _, query = request.url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 0),
        "server": (request.url.host, request.url.port),
    }


def _patience(request: http.Request) -> float | None:
    """Seconds the client waits for the next bytes; there is nothing to connect to and nothing to write."""
    found = request.extensions.get("timeout", {}).get("read")
    return None if found is None else float(found)


def _translated(fault: TimeoutError | BrokenOff, request: http.Request) -> Exception:
    """As the library says it, so that `openai` raises what it raises over a socket."""
    if isinstance(fault, TimeoutError):
        return http.ReadTimeout("The app sent nothing in time.", request=request)
    return http.RemoteProtocolError(str(fault), request=request)
