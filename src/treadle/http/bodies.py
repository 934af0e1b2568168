"""Request bodies: read within bounds of size and time, decompressed within a bound, decoded into typed requests."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope

from treadle.errors import InvalidRequest, TooLarge, TooSlow, UnsupportedMedia
from treadle.http.depth import too_deep
from treadle.wire.base import decode, encode
from treadle.wire.faults import unreadable

T = TypeVar("T")

MAX_DECODED = 104_857_600
"""Bytes a compressed body may grow to (contract §1.1)."""

UPLOAD_SECONDS = 60.0
ENOUGH = 16_384
"""An upload may take as long as it likes while this many bytes arrive in every UPLOAD_SECONDS."""

_MAX_FRAMES, _PIECE = 1000, 65_536
"""Frames of one compressed body, and bytes that are decompressed at a time."""


class Paced:
    """The `receive` of a request that raises TooSlow when the body dawdles. Behind the body it waits without end.

    A body has to be whole within `seconds`. An upload of files may be large, so there it is the pace that counts.
    """

    def __init__(self, scope: Scope, receive: Receive, seconds: float) -> None:
        self._receive = receive
        self._upload = any(
            name == b"content-type" and value[:10].lower() == b"multipart/" for name, value in scope["headers"]
        )
        self._seconds = min(seconds, UPLOAD_SECONDS) if self._upload else seconds
        self._until = 0.0
        self._arrived = 0
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        loop = asyncio.get_running_loop()
        self._until = self._until or loop.time() + self._seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise TooSlow(self._reproach()) from None
        self._whole = not message.get("more_body", False)
        self._arrived += len(message.get("body", b""))
        if self._upload and self._arrived >= ENOUGH:
            self._arrived, self._until = 0, loop.time() + self._seconds
        return message

    def _reproach(self) -> str:
        if self._upload:
            return f"The upload has stopped: fewer than {ENOUGH} bytes arrived in {self._seconds:g} seconds."
        return f"The body did not arrive within {self._seconds:g} seconds (server.body_timeout_seconds)."


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body, decompressed. TooLarge over `limit` bytes on the wire or MAX_DECODED after decompression."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
    except ClientDisconnect:
        raise InvalidRequest("The body did not arrive whole.", code="invalid_json") from None
    return _decompressed(b"".join(parts), request.headers.get("content-encoding", ""))


async def read_json(request: Request, decoder: msgspec.json.Decoder[T], limit: int, *, empty: bytes = b"") -> T:
    """The body as the typed request it must be. `empty` stands in for an absent body, where one may be absent."""
    return decode(decoder, await read_utf8(request, limit) or empty)


async def read_utf8(request: Request, limit: int) -> bytes:
    """A JSON body, checked to be UTF-8 and of a sane depth: parts of it may be kept and passed on unread."""
    body = await read_body(request, limit)
    kind = request.headers.get("content-type", "").lower()
    if kind.startswith("multipart/"):
        raise UnsupportedMedia("Send JSON with 'Content-Type: application/json'.")
    # curl calls everything a form unless it is told; no form begins with a brace.
    if kind.startswith("application/x-www-form-urlencoded") and body.lstrip()[:1] != b"{":
        body = _from_form(body)
    body = body.removeprefix(b"\xef\xbb\xbf")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            raise unreadable(body, str(error)) from None
    if too_deep(body):
        raise InvalidRequest("The JSON is nested too deeply.", code="invalid_json")
    return body


def _from_form(body: bytes) -> bytes:
    """A form as JSON: each value read as JSON where it is some, repeated keys as a list (contract §1.1)."""
    found: dict[str, list[Raw]] = {}
    raw: msgspec.json.Decoder[Raw] = msgspec.json.Decoder(Raw)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=1000, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise InvalidRequest("The form could not be read.", code="invalid_json") from None
    for key, value in pairs:
        try:
            parsed = Raw(bytes(raw.decode(value)))
        except (msgspec.MsgspecError, RecursionError):
            parsed = Raw(encode(value))
        found.setdefault(key, []).append(parsed)
    return encode({key: values[0] if len(values) == 1 else values for key, values in found.items()})


def _decompressed(body: bytes, encoding: str) -> bytes:
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip":
            try:
                return _expanded(body, lambda: zlib.decompressobj(wbits=31))
            except zlib.error:
                raise InvalidRequest("The body is not valid gzip.", code="invalid_json") from None
        case "zstd":
            return _unzstd(body)
        case other:
            raise UnsupportedMedia(f"Content-Encoding '{other[:32]}' is not supported; use zstd, gzip or none.")


def _unzstd(body: bytes) -> bytes:
    # Imported on first use: only Codex compresses.
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    try:
        return _expanded(body, zstd.ZstdDecompressor)
    except zstd.ZstdError:
        raise InvalidRequest("The body is not valid zstd.", code="invalid_json") from None


class _Stream(Protocol):
    """A decompressor of one frame."""

    def decompress(self, data: memoryview, max_length: int, /) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


def _expanded(body: bytes, start: Callable[[], _Stream]) -> bytes:
    """All frames of a compressed body; a sender may write several."""
    found: list[bytes] = []
    rest = memoryview(body)
    size = frames = 0
    while rest:
        stream = start()
        if (frames := frames + 1) > _MAX_FRAMES:
            raise InvalidRequest(f"The body has more than {_MAX_FRAMES} compressed frames.", code="invalid_json")
        # A decompressor copies what it was given and did not use, so it is given little at a time.
        while rest and not stream.eof:
            piece, rest = rest[:_PIECE], rest[_PIECE:]
            found.append(stream.decompress(piece, MAX_DECODED + 1 - size))
            size += len(found[-1])
            if size > MAX_DECODED:
                raise _too_large(MAX_DECODED)
            if unused := len(stream.unused_data):
                rest = memoryview(body)[len(body) - len(rest) - unused :]
        if not stream.eof:
            raise InvalidRequest("The compressed body is not complete.", code="invalid_json")
    return b"".join(found)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.")
