"""HTTP/1.1 as uvicorn reads it, with what must be settled before an app is asked: a bound, and faults in our form."""

from __future__ import annotations

from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from treadle.errors import InvalidRequest, ServerError
from treadle.ids import new_id
from treadle.wire.base import encode

MAX_HEAD = 65_536
"""Bytes that the address and the headers of a request may have."""


class HeadTooLarge(InvalidRequest):
    status = 431
    code = "headers_too_large"


class Protocol(HttpToolsProtocol):
    """One connection. An offer to change to HTTP/2 is ignored (RFC 9110 §7.8); Java's HttpClient makes it each time.
    One to change to WebSocket is taken.

    The parser takes every such offer as the end of HTTP, and the body for the other protocol's. So the request is
    read a second time without the offer.
    """

    _messages = 0
    _idle = True
    _in_head = False
    _offered = False
    _head = 0
    """Bytes of this head that are read in full."""
    _unread = 0
    """Bytes of reads that hold nothing but a part of this head: the parser keeps them until a header is whole."""

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data:
            expected = self._messages + self._idle if self._idle or self._in_head else None
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                if not self._offered:
                    super().handle_websocket_upgrade()
                    return
                self._offered = False
                self.parser = httptools.HttpRequestParser(self)  # the other may hold the connection for closed
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                data = self._without_offer() + data[offer.args[0] :]
                continue
            except httptools.HttpParserError:
                if self._head > MAX_HEAD:
                    self._refuse(_head_too_large())
                else:
                    self.send_400_response("Invalid HTTP request received.")
                return
            if self._in_head and self._messages == expected:
                self._unread += len(data)
                if self._unread > MAX_HEAD:
                    self._refuse(_head_too_large())
            return

    def send_400_response(self, msg: str) -> None:
        self._refuse(InvalidRequest(msg, code="invalid_http"))

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._messages += 1
        self._idle, self._in_head, self._head, self._unread = False, True, 0, 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._offered = (
            self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade()
        )
        if not self._offered:
            super().on_headers_complete()
        else:
            self._method, self._version = self.parser.get_method(), self.parser.get_http_version().encode()

    def on_message_complete(self) -> None:
        self._idle = True
        if not self._offered:
            super().on_message_complete()

    # ------------------------------------------------------------------------------------------------

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MAX_HEAD:
            raise _head_too_large()  # for the parser, which stops

    def _without_offer(self) -> bytes:
        """The head of the request as it was, but for the offer."""
        lines = [b"%b %b HTTP/%b" % (self._method, self.url, self._version)]
        for name, value in self.headers:
            if name == b"connection":
                kept = [token for token in value.split(b",") if token.strip().lower() not in _OFFER]
                value = b",".join(kept)
            if name not in _OFFER and (value or name != b"connection"):
                lines.append(name + b": " + value)
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, fault: ServerError) -> None:
        """Answers without the app and ends the connection: where the next request begins is not known."""
        body = encode(fault.envelope())
        lines = [
            f"HTTP/1.1 {fault.status} {HTTPStatus(fault.status).phrase}".encode(),
            *(name + b": " + value for name, value in self.server_state.default_headers),
            b"content-type: application/json",
            b"content-length: %d" % len(body),
            b"x-request-id: " + new_id("req").encode(),
            *(name.encode() + b": " + value.encode() for name, value in fault.headers.items()),
            b"connection: close",
        ]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.transport.close()


_OFFER = (b"upgrade", b"http2-settings")


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"The address and headers of the request are larger than {MAX_HEAD} bytes.")
