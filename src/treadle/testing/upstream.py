"""ScriptedUpstream: a real HTTP server on a loopback port that plays an OpenAI-compatible model server.

    async with ScriptedUpstream(Reply(text="Hello")) as upstream:      # or `with`, from a test without a loop
        ... point the server under test at upstream.url ...
    assert upstream.requests[0].body["messages"][-1]["content"] == "Hi"
    upstream.assert_consumed()

Chat completions and completions take the next scripted turn each; models, embeddings and rerankings always answer.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self, cast

import httptools

from treadle.testing import turns
from treadle.testing.gates import PATIENCE, Gate, Waitable
from treadle.testing.threads import InThread
from treadle.testing.turns import Call, Drop, Raw, Refuse, Reply, Tokens, Turn

__all__ = ["Call", "Drop", "Gate", "Raw", "Received", "Refuse", "Reply", "ScriptedUpstream", "Tokens", "Turn"]


@dataclass
class Received:
    """A request as it arrived. Header names are lower case; `body` is the decoded JSON, {} when there is none.

    `disconnected` opens if the client closes the connection before the answer was complete; `answered` opens when
    the last byte of the answer was written.
    """

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    body: dict[str, Any]
    connection: int
    disconnected: Gate = field(default_factory=Gate)
    answered: Gate = field(default_factory=Gate)


Answer = Turn | Callable[[Received], Turn]


class ScriptedUpstream(InThread):
    """The server. `turns` are answered in order; `default` (a turn, or a function of the request) answers when they
    are used up. Without one, a further request is a 500 that `assert_consumed` reports."""

    def __init__(
        self, *script: Turn, default: Answer | None = None, models: Iterable[str] = ("scripted",), dimensions: int = 16
    ) -> None:
        self.default = default
        self.models = list(models)
        self.dimensions = dimensions
        self.embedding: Callable[[Received], Turn | Gate | None] | None = None
        """What a request for embeddings meets first: something to wait for, or an answer instead of the usual one."""
        self.port = 0
        self.requests: list[Received] = []
        """What was asked of a model: chat completions and completions, in order of arrival."""
        self.other_requests: list[Received] = []
        """Everything else: models, embeddings, rerankings, unknown paths."""
        self.unexpected: list[Received] = []
        self.faults: list[BaseException] = []
        self.connections = 0
        """Connections accepted so far; compare with `open_connections` to see reuse and leaks."""
        self._script: deque[Turn] = deque(script)
        self._open: set[_Connection] = set()
        self._waiting: list[tuple[int, Gate]] = []
        self._lock = threading.Lock()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """The base URL to configure, ending in `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def script(self, *more: Turn) -> Self:
        """Appends turns; usable at any time, from any thread."""
        self._script.extend(more)
        return self

    def assert_consumed(self) -> None:
        """AssertionError if turns are left over, a request came that nothing was scripted for, or a turn broke."""
        problems = [f"nothing was scripted for {request.method} {request.path}" for request in self.unexpected]
        problems += [f"never asked for: {turn!r}" for turn in self._script]
        problems += [f"the script broke: {fault!r}" for fault in self.faults]
        if problems:
            raise AssertionError("; ".join(problems))

    async def received(self, number: int = 1, *, seconds: float = PATIENCE) -> Received:
        """The `number`-th model request (from 1), waiting until it has arrived. TimeoutError after `seconds`."""
        await self._arrival(number).within(seconds)
        return self.requests[number - 1]

    def received_blocking(self, number: int = 1, *, seconds: float = PATIENCE) -> Received:
        """`received` for a test without an event loop."""
        self._arrival(number).wait_blocking(seconds)
        return self.requests[number - 1]

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*(connection.close() for connection in list(self._open)))
        async with asyncio.timeout(PATIENCE):
            await self._server.wait_closed()

    def _arrival(self, number: int) -> Gate:
        gate = Gate()
        with self._lock:
            if len(self.requests) >= number:
                gate.set()
            else:
                self._waiting.append((number, gate))
        return gate

    def _take(self, request: Received) -> Turn:
        """The turn for a model request; both change together, so order holds for concurrent requests."""
        with self._lock:
            self.requests.append(request)
            arrived = [gate for number, gate in self._waiting if number <= len(self.requests)]
            self._waiting = [(number, gate) for number, gate in self._waiting if number > len(self.requests)]
            turn: Answer | None = self._script.popleft() if self._script else self.default
        for gate in arrived:
            gate.set()
        if turn is None:
            self.unexpected.append(request)
            message = f"Nothing was scripted for model request {len(self.requests)}."
            return Refuse(500, {"error": {"message": message, "type": "unscripted", "code": None, "param": None}})
        return turn(request) if callable(turn) else turn

    async def _answer(self, request: Received, out: _Connection) -> None:
        path = request.path.partition("?")[0].rstrip("/")
        if request.method == "POST" and path.endswith(("/chat/completions", "/completions")):
            await _play(self._take(request), request, out, chat=path.endswith("/chat/completions"))
            return
        self.other_requests.append(request)
        if path.endswith("/models"):
            listed = [{"id": name, "object": "model", "created": 0, "owned_by": "scripted"} for name in self.models]
            out.send_whole(200, {}, _json({"object": "list", "data": listed}))
        elif request.method == "POST" and path.endswith("/embeddings"):
            instead = None if self.embedding is None else self.embedding(request)
            if isinstance(instead, Gate):
                await instead.wait()
            elif instead is not None:
                await _play(instead, request, out, chat=False)
                return
            out.send_whole(200, {}, _json(turns.embeddings(request.body, self.dimensions)))
        elif request.method == "POST" and path.endswith("/rerank"):
            out.send_whole(200, {}, _json(turns.ranks(request.body)))
        else:
            error = {"message": f"No such path: {path}", "type": "invalid_request_error", "code": None, "param": None}
            out.send_whole(404, {}, _json({"error": error}))


async def _play(turn: Turn, request: Received, out: _Connection, *, chat: bool) -> None:
    match turn:
        case Raw():
            await _write_all(out, turn.status, turn.headers, turn.writes)
        case Refuse():
            if turn.before is not None:
                await turn.before.wait()
            body = turn.body if isinstance(turn.body, str | bytes) else _json(turn.body)
            out.send_whole(turn.status, dict(turn.headers), body if isinstance(body, bytes) else body.encode())
        case Reply():
            await _reply(turn, request, out, chat=chat, cut=None)
        case Drop():
            if turn.after > 0:
                await _reply(turn.reply, request, out, chat=chat, cut=turn.after)
            out.abort()


async def _reply(reply: Reply, request: Received, out: _Connection, *, chat: bool, cut: int | None) -> None:
    """Writes `reply`, or its first `cut` chunks without an end."""
    if reply.before is not None:
        await reply.before.wait()
    if not request.body.get("stream"):
        body = turns.completion(reply, request.body) if chat else turns.text_completions(reply, request.body)[0]
        whole = _json(body)
        if cut is None:
            out.send_whole(200, dict(reply.headers), whole)
        else:
            out.send_head(200, {**reply.headers, "content-length": str(len(whole))})
            out.write(whole[: len(whole) // 2])
        return
    chunks = turns.stream_chunks(reply, request.body) if chat else turns.text_completions(reply, request.body)
    frames = [turns.sse(one, done=False) for one in chunks[:cut]] + ([b"data: [DONE]\n\n"] if cut is None else [])
    if reply.burst:
        frames = [b"".join(frames)]
    writes: list[bytes | Waitable] = []
    for number, frame in enumerate(frames):
        if number in reply.held:
            writes.append(reply.held[number])
        writes.append(frame)
    headers = {"content-type": "text/event-stream", **reply.headers}
    await _write_all(out, 200, headers, writes, ended=cut is None)


async def _write_all(
    out: _Connection, status: int, headers: Any, writes: Iterable[bytes | Waitable], *, ended: bool = True
) -> None:
    out.send_head(status, {**headers, "transfer-encoding": "chunked"})
    for step in writes:
        if isinstance(step, bytes):
            if step:
                out.write(b"%x\r\n%b\r\n" % (len(step), step))
            # A reader on this same loop sees each write by itself: one pass to poll its socket, one to read it.
            for _ in range(3):
                await asyncio.sleep(0)
            await out.drained()
        else:
            await step.wait()
    if ended:
        out.write(b"0\r\n\r\n")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


class _Connection(asyncio.Protocol):
    """One client connection: parses requests, runs one answer at a time, and knows when the client went away."""

    def __init__(self, upstream: ScriptedUpstream) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._number = 0
        self._queue: asyncio.Queue[Received] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._current: Received | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked at run time: uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        self._upstream.connections += 1
        self._number = self._upstream.connections
        self._upstream._open.add(self)
        self._worker = asyncio.get_running_loop().create_task(self._work())

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as fault:
            self._upstream.faults.append(fault)
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._upstream._open.discard(self)
        self._writable.set()
        if self._current is not None:
            self._current.disconnected.set()
        if self._worker is not None:
            self._worker.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        raw = b"".join(self._body)
        try:
            body = json.loads(raw) if raw else {}
        except ValueError as fault:
            self._upstream.faults.append(fault)
            body = {}
        method = self._parser.get_method().decode()
        path = self._url.decode("latin-1")
        self._queue.put_nowait(Received(method, path, self._headers, raw, body, self._number))

    # What an answer uses.

    def send_head(self, status: int, headers: dict[str, str]) -> None:
        phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Scripted"
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.write(f"HTTP/1.1 {status} {phrase}\r\n{lines}\r\n".encode("latin-1"))

    def send_whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_head(status, {"content-type": "application/json", **headers, "content-length": str(len(body))})
        self.write(body)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        await self._writable.wait()

    def abort(self) -> None:
        """Ends the connection at once, mid-answer if need be, after what was written has left."""
        if self._transport is not None:
            self._transport.close()

    async def close(self) -> None:
        self.abort()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            self._current = request = await self._queue.get()
            try:
                await self._upstream._answer(request, self)
            except Exception as fault:  # noqa: BLE001 - a broken script must show in the test, not in a log
                self._upstream.faults.append(fault)
                self.abort()
            request.answered.set()
            self._current = None
            if request.headers.get("connection", "").lower() == "close":
                self.abort()
