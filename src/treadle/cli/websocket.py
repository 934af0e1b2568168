"""A WebSocket connection as uvicorn runs it: the protocol is that of `websockets`, the rest is made for this server.

What differs from uvicorn's own: refused handshakes carry our envelope; a message that is too large is told of before
the connection closes; answers to pings and pieces of a message cannot pile up; and when the server stops, the app is
told, so that a running response can end.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from http import HTTPStatus
from itertools import count
from typing import Any, cast
from urllib.parse import unquote

from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol

from treadle.errors import InvalidRequest, TooLarge
from treadle.ids import new_id
from treadle.wire.base import encode
from treadle.wire.sockets import FRAMES, STOPPING, FrameError, begin_text, end_text, told

log = logging.getLogger("treadle.websocket")

PING_SECONDS = 20.0
PONG_SECONDS = 60.0
"""How long a client may leave a ping unanswered. Some are busy for a while and read nothing meanwhile."""
CLOSE_SECONDS = 2.0
"""How long a client has to answer our close."""

Message = dict[str, Any]


def largest_message(max_body: int) -> int:
    """Bytes of a message that the app gets to see, so that it can refuse one in words and go on. Larger ones end the
    connection: they cannot be skipped."""
    return 2 * max_body


class Disconnected(OSError):
    """The client is gone, or has been told that the connection ends."""


class _Handshake(ServerProtocol):
    """The protocol, with refusals in our form."""

    def reject(self, status: int | HTTPStatus, text: str) -> Response:
        fault = InvalidRequest(text.partition("\n")[0], code="invalid_handshake")
        return refused(int(status), encode(fault.envelope()), [("content-type", "application/json")])


def refused(status: int, body: bytes, headers: list[tuple[str, str]]) -> Response:
    """An HTTP answer instead of a connection."""
    found = Headers(headers)
    found.setdefault("content-length", str(len(body)))
    found.setdefault("x-request-id", new_id("req"))
    found["connection"] = "close"
    return Response(status, HTTPStatus(status).phrase, found, body)


class WebSocketProtocol(asyncio.Protocol):
    """One connection, made by the HTTP protocol once a client asks for it."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._config = config
        self._server = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_running_loop()
        self._protocol = _Handshake(max_size=config.ws_max_size)
        self._transport: asyncio.Transport
        self._queue: asyncio.Queue[Message] = asyncio.Queue()
        self._reading = True
        self._writable = asyncio.Event()
        self._writable.set()
        self._handshake: Response | None = None
        """The answer that opens the connection; None once it is sent, or a refusal."""
        self._refusal: tuple[int, list[tuple[str, str]], bytearray] | None = None
        self._asked = False
        self._closing = False
        self._lost = False
        self._message: bytearray | bytes = b""
        self._is_text = True
        self._pings = count()
        self._ping: bytes | None = None
        self._timer: asyncio.TimerHandle | None = None

    # ----------------------------------------------------------------------------------- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.connections.add(self)  # type: ignore[arg-type]  # any protocol with `shutdown` will do

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._stop_timer()
        self._server.connections.discard(self)
        self._queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def eof_received(self) -> None:
        return None

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._connect(event)
            elif isinstance(event, Frame):
                self._frame(event)
        if not self._asked:
            self._refuse_handshake()
        elif self._protocol.parser_exc is not None and not self._closing:
            self._break_off()

    # ------------------------------------------------------------------------------------ from the server

    def shutdown(self) -> None:
        """The server stops. A connection that is open is ended by the app, which knows what runs."""
        if self._protocol.state is State.OPEN and not self._closing:
            self._queue.put_nowait({"type": STOPPING})
        elif not self._closing:
            self._transport.close()

    # --------------------------------------------------------------------------------------- what came in

    def _connect(self, request: Request) -> None:
        self._asked = True
        answer = self._protocol.accept(request)
        if answer.status_code != 101:
            self._reject(answer)
            return
        self._handshake = answer
        path, _, query = request.path.partition("?")
        root = self._config.root_path
        scope: Message = {
            "type": "websocket",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if is_ssl(self._transport) else "ws",
            "server": get_local_addr(self._transport),
            "client": get_remote_addr(self._transport),
            "root_path": root,
            "path": root + unquote(path),
            "raw_path": (root + path).encode("ascii", "surrogateescape"),
            "query_string": query.encode("ascii", "surrogateescape"),
            "headers": [
                (name.lower().encode("ascii"), value.encode("utf-8", "surrogateescape"))
                for name, value in request.headers.raw_items()
            ],
            "subprotocols": [],
            "state": self._app_state.copy(),
            "extensions": {"websocket.http.response": {}, FRAMES: {}},
        }
        self._queue.put_nowait({"type": "websocket.connect"})
        task = self._loop.create_task(self._run(scope))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def _frame(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.BINARY:
                self._is_text, self._message = frame.opcode is Opcode.TEXT, bytes(frame.data)
                if frame.fin:
                    self._whole()
            case Opcode.CONT:
                if not isinstance(self._message, bytearray):
                    self._message = bytearray(self._message)
                self._message += frame.data
                if frame.fin:
                    self._whole()
            case Opcode.PING:
                answers = self._protocol.data_to_send()
                # A client that asks and does not read would have us keep its answers; one is as good as many.
                if self._writable.is_set():
                    self._transport.writelines(answers)
            case Opcode.PONG:
                if self._ping is not None and bytes(frame.data) == self._ping:
                    self._schedule_ping()
            case Opcode.CLOSE:
                self._stop_timer()
                self._closing = True
                self._queue.put_nowait({"type": "websocket.disconnect", "code": 1005})
                self._say_rest()
                self._transport.close()

    def _whole(self) -> None:
        data, self._message = self._message, b""
        if self._closing:
            return
        if not self._is_text:
            self._queue.put_nowait({"type": "websocket.receive", "bytes": bytes(data)})
        else:
            try:
                text = data.decode()
            except UnicodeDecodeError:
                self._protocol.fail(1007, "not UTF-8")
                self._break_off()
                return
            self._queue.put_nowait({"type": "websocket.receive", "text": text})
        if self._reading:
            self._reading = False
            self._transport.pause_reading()

    def _refuse_handshake(self) -> None:
        """The request is one that the WebSocket library cannot read, such as one with a very long header."""
        if self._protocol.handshake_exc is not None and not self._closing:
            self._reject(self._protocol.reject(HTTPStatus.BAD_REQUEST, "The WebSocket handshake could not be read."))

    def _break_off(self) -> None:
        """The client broke the protocol, or sent more than it may: what follows cannot be read."""
        self._closing = True
        self._stop_timer()
        sent = self._protocol.close_sent
        if sent is not None and sent.code == 1009:
            fault = TooLarge(f"The message is larger than {self._config.ws_max_size} bytes.")
            self._transport.write(text_frame(encode(FrameError(status=fault.status, error=told(fault)))))
        self._queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self._say_rest()
        self._linger()

    # ------------------------------------------------------------------------------------------ the app

    async def _run(self, scope: Message) -> None:
        try:
            await self._config.loaded_app(scope, self.receive, self.send)
        except Disconnected:
            pass
        except Exception:
            log.exception("a WebSocket connection failed")
            if self._protocol.state is State.OPEN and not self._closing:
                self._close(1011, "")
        finally:
            if not self._closing:
                self._transport.close()

    async def receive(self) -> Message:
        message = await self._queue.get()
        if not self._reading and self._queue.empty() and not self._lost:
            self._reading = True
            self._transport.resume_reading()
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in (FRAMES, "websocket.send"):
            if not self._writable.is_set():
                await self._writable.wait()
            if self._lost or self._closing:
                raise Disconnected
            self._transport.write(message["data"] if kind == FRAMES else text_frame(message["text"].encode()))
        elif self._lost or self._closing:
            raise Disconnected
        elif kind == "websocket.accept":
            self._accept(message)
        elif kind == "websocket.close":
            if self._handshake is not None:
                self._reject(self._protocol.reject(HTTPStatus.FORBIDDEN, "This connection is refused."))
            else:
                self._close(message.get("code", 1000), message.get("reason") or "")
        elif kind == "websocket.http.response.start":
            self._refusal = message["status"], _text(message.get("headers", ())), bytearray()
        elif kind == "websocket.http.response.body" and self._refusal is not None:
            status, headers, body = self._refusal
            body += message.get("body", b"")
            if not message.get("more_body", False):
                self._reject(refused(status, bytes(body), headers))
        else:
            raise RuntimeError(f"{kind} cannot be sent now")

    def _accept(self, message: Message) -> None:
        assert self._handshake is not None
        answer, self._handshake = self._handshake, None
        for name, value in _text([*self._server.default_headers, *message.get("headers", ())]):
            if name != "date":  # it is there
                answer.headers[name] = value
        self._protocol.send_response(answer)
        self._transport.writelines(self._protocol.data_to_send())
        self._schedule_ping()

    # ------------------------------------------------------------------------------------------- endings

    def _reject(self, answer: Response) -> None:
        """Answers the handshake with something else than a connection."""
        self._handshake = None
        self._closing = True
        self._queue.put_nowait({"type": "websocket.disconnect", "code": 1006})
        self._transport.write(answer.serialize())
        self._transport.close()

    def _close(self, code: int, reason: str) -> None:
        """Says that the connection ends, and waits a little for the client to say so too."""
        self._closing = True
        self._stop_timer()
        self._queue.put_nowait({"type": "websocket.disconnect", "code": code})
        self._protocol.send_close(code, reason)
        self._say_rest()
        self._await_close()

    def _say_rest(self) -> None:
        """Sends what the protocol has left to say."""
        self._transport.writelines([part for part in self._protocol.data_to_send() if part])

    def _linger(self) -> None:
        """Ends our side and reads on for a while: closing with something unread would destroy what was just said."""
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._await_close()

    def _await_close(self) -> None:
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        self._timer = self._loop.call_later(CLOSE_SECONDS, self._transport.close)

    # ------------------------------------------------------------------------------------------- pings

    def _schedule_ping(self) -> None:
        self._stop_timer()
        self._ping = None
        if self._config.ws_ping_interval:
            self._timer = self._loop.call_later(self._config.ws_ping_interval, self._send_ping)

    def _send_ping(self) -> None:
        self._ping = struct.pack("!I", next(self._pings) & 0xFFFFFFFF)
        self._protocol.send_ping(self._ping)
        self._transport.writelines(self._protocol.data_to_send())
        self._timer = self._loop.call_later(self._config.ws_ping_timeout or PONG_SECONDS, self._unanswered)

    def _unanswered(self) -> None:
        """Nobody is there any more, or somebody who has stopped reading."""
        self._close(1011, "no answer to a ping")
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def text_frame(data: bytes) -> bytearray:
    frames = bytearray()
    begin_text(frames)
    frames += data
    end_text(frames, 0)
    return frames


def _text(headers: Any) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
