"""Request bodies: read within a bound, decompressed within a bound, decoded into typed requests."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw
from starlette.requests import ClientDisconnect, Request

from treadle.errors import InvalidRequest, TooLarge, UnsupportedMedia
from treadle.wire.base import decode, encode

T = TypeVar("T")

MAX_DECODED = 104_857_600
"""Bytes a compressed body may grow to (contract §1.1)."""


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
    """A JSON body, checked to be UTF-8: parts of it may be passed on unread."""
    body = await read_body(request, limit)
    kind = request.headers.get("content-type", "")
    if kind.startswith("application/x-www-form-urlencoded"):
        return _from_form(body)
    if kind.startswith("multipart/"):
        raise UnsupportedMedia("Send JSON with 'Content-Type: application/json'.")
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            raise InvalidRequest("The body is not valid UTF-8.", code="invalid_json") from None
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
            return _inflated(body, lambda: zlib.decompressobj(wbits=31))
        case "zstd":
            return _unzstd(body)
        case other:
            raise UnsupportedMedia(f"Content-Encoding '{other[:32]}' is not supported; use zstd, gzip or none.")


def _inflated(body: bytes, start: Callable[[], zlib._Decompress]) -> bytes:
    try:
        stream = start()
        found = stream.decompress(body, MAX_DECODED + 1)
        if len(found) > MAX_DECODED:
            raise _too_large(MAX_DECODED)
        if not stream.eof:
            raise InvalidRequest("The compressed body is not complete.", code="invalid_json")
        return found
    except zlib.error:
        raise InvalidRequest("The body is not valid gzip.", code="invalid_json") from None


def _unzstd(body: bytes) -> bytes:
    from backports import zstd  # imported on first use: only Codex compresses

    try:
        stream = zstd.ZstdDecompressor()
        found = stream.decompress(body, MAX_DECODED + 1)
        if len(found) > MAX_DECODED:
            raise _too_large(MAX_DECODED)
        if not stream.eof:
            raise InvalidRequest("The compressed body is not complete.", code="invalid_json")
        return bytes(found)
    except zstd.ZstdError:
        raise InvalidRequest("The body is not valid zstd.", code="invalid_json") from None


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.")
