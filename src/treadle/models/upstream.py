"""One HTTP client for all model servers, and what their refusals mean."""

from __future__ import annotations

import re
import socket

import aiohttp
import msgspec

from treadle.errors import ContextTooLong, QuotaExceeded, ServerError, UnknownModel, UpstreamFault, UpstreamRefused

RETRIED = frozenset({408, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same call may succeed."""
MAX_WAIT = 5.0
"""Seconds a retry may wait; a longer `Retry-After` is the caller's to honour."""
_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum context|too many tokens|prompt is too long|exceeds? the (model|available) context",
    re.IGNORECASE,
)
_SHOWN = 600


def open_session() -> aiohttp.ClientSession:
    """The session that all model servers share: connections are kept and reused, none is refused for number."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ttl_dns_cache=60, family=socket.AF_UNSPEC)
    return aiohttp.ClientSession(connector=connector, auto_decompress=True, cookie_jar=aiohttp.DummyCookieJar())


class _Inner(msgspec.Struct):
    message: str | None = None
    code: str | int | None = None
    param: str | None = None


class _Refusal(msgspec.Struct):
    error: _Inner | str | None = None
    message: str | None = None
    detail: str | None = None


_refusal = msgspec.json.Decoder(_Refusal, strict=False)


def fault_of(status: int, body: bytes, headers: dict[str, str], secret: str, model: str) -> ServerError:
    """The wire error for a refusal: its meaning is kept, whatever shape it came in, and `secret` never shows."""
    message, code = _read(body)
    if secret:
        message = message.replace(secret, "***")
    message = message[:_SHOWN]
    if status == 429:
        kept: dict[str, str] = {name: headers[name] for name in ("retry-after", "retry-after-ms") if name in headers}
        return QuotaExceeded(message or "The model server is at its limit.", headers=kept)
    if code == "context_length_exceeded" or (status in (400, 413) and _TOO_LONG.search(message)):
        return ContextTooLong(message, param="input")
    if status == 404 and (code == "model_not_found" or "model" in message.lower() or not message):
        return UnknownModel(message or f"The model server does not know the model '{model}'.", param="model")
    if 400 <= status < 500:
        status = 400 if status == 422 else status
        return UpstreamRefused(f"The model server refused the request: {message}", status=status, code=code)
    return UpstreamFault(f"The model server failed with status {status}: {message}")


def wait_seconds(headers: dict[str, str]) -> float | None:
    """What `retry-after-ms` or `retry-after` asks for, in seconds; dates are not worth reading here."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * scale)
        except (KeyError, ValueError):
            continue
    return None


def _read(body: bytes) -> tuple[str, str | None]:
    try:
        found = _refusal.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace").strip(), None
    inner = found.error
    if isinstance(inner, _Inner):
        return inner.message or "", str(inner.code) if inner.code is not None else None
    return inner or found.message or found.detail or "", None
