"""FakeMcpServer: a real MCP server on a loopback port, with scripted tools and every way to misbehave.

    with FakeMcpServer(token="s3cret") as server:          # or `async with`
        ... let the client under test use server.url ...
    assert server.calls == [("echo", {"text": "Hi"})]

The server side of the official SDK speaks the protocol, so what a client gets away with here is really allowed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

import mcp_types as types
import uvicorn
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.sse import SseServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError
from starlette.types import Message, Receive, Scope, Send

from treadle.testing.gates import PATIENCE, Gate
from treadle.testing.mcp_tools import BUILT_IN, FakeTool, Given, Use
from treadle.testing.serving import QuickServer

Speech = Literal["modern", "handshake", "sse"]
"""Streamable HTTP without sessions (2026), streamable HTTP with a handshake and sessions, or SSE."""


@dataclass
class McpRequest:
    """A request as it arrived. Header names are lower case; `rpc` is the JSON-RPC method, "" if there is none."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def rpc(self) -> str:
        return str(self.body.get("method", ""))


@dataclass
class Trouble:
    """An answer instead of the server's. It hangs while `before` is shut; `rpc` limits it to one JSON-RPC method,
    `times` to the next so many requests."""

    status: int = 500
    body: str = "no"
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)
    before: Gate | None = None
    rpc: str | None = None
    times: int | None = None


UNAUTHORIZED = Trouble(status=401, headers={"www-authenticate": "Bearer"})
WEB_PAGE = Trouble(status=200, body="<html><title>Welcome</title></html>", content_type="text/html; charset=utf-8")


class FakeMcpServer:
    """The server, in a thread of its own. `tools` are offered besides the built-in ones, `page` at a time.

    Built-in: `echo`, `fail` (a failed result), `crash` (a JSON-RPC error), `slow` (waits for `gate`), `image`,
    `audio`, `resource`, `blob`, `link`, `structured`, `misfit` (breaks its own output schema), `nothing`, `big`
    (`size` letters), `ask` (wants `what`: elicitation, sampling or roots, and returns what it was told).
    """

    def __init__(
        self,
        speech: Speech = "modern",
        *,
        token: str | None = None,
        tools: Sequence[FakeTool] = (),
        page: int = 100,
        json_answers: bool = False,
        port: int = 0,
    ) -> None:
        self.speech = speech
        self.token = token
        self.tools = {tool.name: tool for tool in (*BUILT_IN, *tools)}
        self.page = page
        self.json_answers = json_answers
        self.gate = Gate()
        """What `slow` waits for."""
        self.requests: list[McpRequest] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.cancelled: list[str] = []
        """Names of tools whose call was cancelled while it ran."""
        self.troubles: list[Trouble] = []
        """Looked at in order for each request; the first that applies answers."""
        self.moved: dict[str, Trouble] = {}
        """Answers by path, such as redirects."""
        self._arrivals: list[tuple[Callable[[McpRequest], bool], int, Gate]] = []
        self._cancels: list[tuple[int, Gate]] = []
        self._lock = threading.Lock()
        self._bus = InMemorySubscriptionBus()
        self._sessions: set[Any] = set()
        self._streams: set[asyncio.Task[Any]] = set()
        self._ready = Gate()
        self._stop = Gate()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._uvicorn: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._incarnation: _Incarnation | None = None
        self.port = port

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.root}/{'sse' if self.speech == 'sse' else 'mcp'}"

    @property
    def open_connections(self) -> int:
        return 0 if self._uvicorn is None else len(self._uvicorn.server_state.connections)

    def count(self, rpc: str) -> int:
        """How many requests of a JSON-RPC method have arrived."""
        return sum(request.rpc == rpc for request in list(self.requests))

    async def received(self, rpc: str, number: int = 1, *, seconds: float = PATIENCE) -> McpRequest:
        """The `number`-th request of a JSON-RPC method (from 1), waiting for it. TimeoutError after `seconds`."""
        await self._arrival(rpc, number).within(seconds)
        return [request for request in self.requests if request.rpc == rpc][number - 1]

    def received_blocking(self, rpc: str, number: int = 1, *, seconds: float = PATIENCE) -> McpRequest:
        """`received` for a test without an event loop."""
        self._arrival(rpc, number).wait_blocking(seconds)
        return [request for request in self.requests if request.rpc == rpc][number - 1]

    async def was_cancelled(self, number: int = 1, *, seconds: float = PATIENCE) -> None:
        """Waits until `number` calls were cancelled in the middle."""
        gate = Gate()
        with self._lock:
            if len(self.cancelled) >= number:
                gate.set()
            self._cancels.append((number, gate))
        await gate.within(seconds)

    def restart(self) -> None:
        """Forgets all sessions and ends all streams, as a new process on the same port would."""
        self._do(self._reborn())

    def drop_connections(self) -> None:
        """Cuts every connection at once, without a word."""

        async def drop() -> None:
            self._cut()

        self._do(drop())

    def change_tools(self, *tools: FakeTool) -> None:
        """Offers `tools` besides, and tells all who listen that the list is another now."""
        self.tools |= {tool.name: tool for tool in tools}

        async def tell() -> None:
            await self._bus.publish(ToolsListChanged())
            for session in list(self._sessions):
                await session.send_tool_list_changed()

        self._do(tell())

    def __enter__(self) -> Self:
        # With the protocol named, asyncio sends small pieces at once (TCP_NODELAY).
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(listener)), name="fake-mcp-server")
        self._thread.start()
        self._ready.wait_blocking()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._thread is not None
        self.gate.set()
        for trouble in self.troubles:
            if trouble.before is not None:
                trouble.before.set()
        self._stop.set()
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "the fake MCP server did not stop"

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__, None, None, None)

    # ------------------------------------------------------------------------------------- the thread

    def _do(self, work: Awaitable[None]) -> None:
        assert self._loop is not None

        async def run() -> None:
            await work

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            self._app,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
            ws="none",
            interface="asgi3",
        )
        self._uvicorn = QuickServer(config, self._ready)
        self._incarnation = await _Incarnation(self).begin()
        serving = asyncio.create_task(self._uvicorn.serve([listener]))
        await self._stop.wait()
        self._uvicorn.stop()
        await self._end_streams()
        await serving
        await self._incarnation.end()

    async def _reborn(self) -> None:
        assert self._incarnation is not None
        gone, self._incarnation = self._incarnation, await _Incarnation(self).begin()
        await self._end_streams()
        await gone.end()

    async def _end_streams(self) -> None:
        """Cuts all connections, as the end of a process does, and waits until the SDK has noticed."""
        self._cut()
        streams = list(self._streams)
        if streams:
            await asyncio.wait(streams, timeout=2)
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    def _cut(self) -> None:
        assert self._uvicorn is not None
        for connection in list(self._uvicorn.server_state.connections):
            connection.transport.abort()

    # ------------------------------------------------------------------------------------- requests

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        request = McpRequest(
            scope["method"],
            scope["path"],
            scope["query_string"].decode(),
            {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]},
            json.loads(body) if body else {},
        )
        trouble = self._arrived(request)
        if trouble is not None:
            if trouble.before is not None:
                await trouble.before.wait()
            await _answer(send, trouble.status, trouble.content_type, trouble.body, trouble.headers)
            return

        sent = False

        async def again() -> Message:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": body, "more_body": False}
            return await receive()

        assert self._incarnation is not None
        await self._incarnation.answer(request, scope, again, send)

    def _arrived(self, request: McpRequest) -> Trouble | None:
        with self._lock:
            trouble = next((one for one in self.troubles if one.rpc in (None, request.rpc) and one.times != 0), None)
            if trouble is not None and trouble.times is not None:
                trouble.times -= 1
            self.requests.append(request)
            for fits, number, gate in self._arrivals:
                if sum(map(fits, self.requests)) >= number:
                    gate.set()
        if trouble is not None:
            return trouble
        if request.path in self.moved:
            return self.moved[request.path]
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return UNAUTHORIZED
        return None

    def _arrival(self, rpc: str, number: int) -> Gate:
        gate = Gate()

        def fits(request: McpRequest) -> bool:
            return request.rpc == rpc

        with self._lock:
            if sum(map(fits, self.requests)) >= number:
                gate.set()
            else:
                self._arrivals.append((fits, number, gate))
        return gate

    # ------------------------------------------------------------------------------------- the protocol

    async def _list(
        self, context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        self._sessions.add(context.session)
        start = int(params.cursor) if params is not None and params.cursor else 0
        shown = list(self.tools.values())[start : start + self.page]
        more = start + self.page < len(self.tools)
        return types.ListToolsResult(
            tools=[tool.listed() for tool in shown],
            next_cursor=str(start + self.page) if more else None,
        )

    async def _call(self, context: ServerRequestContext[Any], params: types.CallToolRequestParams) -> Given:
        arguments = dict(params.arguments or {})
        self.calls.append((params.name, arguments))
        tool = self.tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        try:
            return await tool.run(Use(arguments, self.gate, context, params))
        except asyncio.CancelledError:
            with self._lock:
                self.cancelled.append(params.name)
                done = [gate for number, gate in self._cancels if number <= len(self.cancelled)]
            for gate in done:
                gate.set()
            raise


class _Incarnation:
    """The server between two restarts: what it knows of sessions goes with it."""

    def __init__(self, fake: FakeMcpServer) -> None:
        self._fake = fake
        self._server: Server[Any] = Server(
            "fake",
            version="1",
            on_list_tools=fake._list,
            on_call_tool=fake._call,
            on_subscriptions_listen=ListenHandler(fake._bus),
        )
        self._manager = StreamableHTTPSessionManager(self._server, json_response=fake.json_answers)
        self._sse = SseServerTransport("/messages")
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> Self:
        begun = asyncio.Event()

        async def live() -> None:
            async with self._manager.run():
                begun.set()
                await self._over.wait()

        self._task = asyncio.create_task(live())
        await begun.wait()
        return self

    async def end(self) -> None:
        self._over.set()
        assert self._task is not None
        await self._task
        self._fake._sessions.clear()

    async def answer(self, request: McpRequest, scope: Scope, receive: Receive, send: Send) -> None:
        match (self._fake.speech, request.method, request.path):
            case ("sse", "GET", "/sse"):
                await self._stream(scope, receive, send)
            case ("sse", _, "/messages"):
                await self._sse.handle_post_message(scope, receive, send)
            case ("modern" | "handshake", _, "/mcp"):
                if self._fake.speech == "handshake" and request.rpc == "server/discover":
                    await _answer(send, 400, "text/plain", "Bad Request: no session", {})
                    return
                async with self._kept():
                    await self._manager.handle_request(scope, receive, send)
            case (_, _, "/sse"):
                await _answer(send, 405, "text/plain", "Method Not Allowed", {})
            case _:
                await _answer(send, 404, "text/plain", "Not Found", {})

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._kept(), self._sse.connect_sse(scope, receive, send) as (messages, sender):
            await self._server.run(messages, sender, self._server.create_initialization_options())

    @asynccontextmanager
    async def _kept(self) -> AsyncGenerator[None, None]:
        task = asyncio.current_task()
        assert task is not None
        self._fake._streams.add(task)
        try:
            yield
        finally:
            self._fake._streams.discard(task)


async def _answer(send: Send, status: int, content_type: str, body: str, headers: Mapping[str, str]) -> None:
    pairs = [("content-type", content_type), ("content-length", str(len(body.encode()))), *headers.items()]
    raw = [(name.encode(), value.encode()) for name, value in pairs]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body.encode()})
