"""One HTTP client for all model servers, and what their refusals mean."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable

import aiohttp
import msgspec

from treadle.errors import ContextTooLong, QuotaExceeded, ServerError, UnknownModel, UpstreamFault, UpstreamRefused
from treadle.models.too_long import CODES, STATUSES, says_too_long

RETRIED = frozenset({408, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same call may succeed."""
MAX_WAIT = 5.0
"""Seconds a retry may wait; a longer `Retry-After` is the caller's to honour."""
_SHOWN = 600
_PLAIN_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""A code that names something; whatever else a server puts there may be anything."""


def open_session() -> aiohttp.ClientSession:
    """The session that all model servers share: connections are kept and reused, none is refused for number."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ttl_dns_cache=60, family=socket.AF_UNSPEC)
    return aiohttp.ClientSession(connector=connector, auto_decompress=True, cookie_jar=aiohttp.DummyCookieJar())


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The whole body, or None when it is longer than `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    while part := await response.content.readany():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


class _Error(msgspec.Struct):
    message: str | None = None
    code: str | int | None = None
    type: str | None = None


class _Detail(msgspec.Struct):
    msg: str = ""


class _Refusal(msgspec.Struct):
    """The shapes of a refusal: OpenAI's envelope, a bare text, vLLM's flat object, FastAPI's `detail`."""

    error: _Error | str | None = None
    message: str | None = None
    code: str | int | None = None
    type: str | None = None
    detail: str | list[_Detail] | None = None


_refusal: msgspec.json.Decoder[_Refusal | list[_Refusal]] = msgspec.json.Decoder(
    _Refusal | list[_Refusal], strict=False
)


def fault_of(status: int, body: bytes, headers: dict[str, str], secrets: Iterable[str], model: str) -> ServerError:
    """The wire error for a refusal: its meaning is kept, whatever shape it came in, and `secrets` never show."""
    found = _read(body, secrets)
    message, code = found.message or "", _code(found)
    if status == 429:
        if code != "insufficient_quota":
            code = None
        return QuotaExceeded(message or "The model server is at its limit.", code=code, headers=_kept(headers))
    if _too_long(found) and status >= 400:
        return ContextTooLong(message or "The input is too long for the model.", param="input")
    if status in STATUSES and says_too_long(message):
        return ContextTooLong(message, param="input")
    if status == 404 and (code == "model_not_found" or "model" in message.lower() or not message):
        return UnknownModel(message or f"The model server does not know the model '{model}'.", param="model")
    reason = message or "it gave no reason."
    if 400 <= status < 500:
        status = 400 if status == 422 else status
        return UpstreamRefused(f"The model server refused the request: {reason}", status=status, code=code)
    return UpstreamFault(f"The model server failed with status {status}: {reason}")


def fault_in_stream(data: bytes, secrets: Iterable[str]) -> ServerError:
    """The wire error for an error that a server reports inside an answer that it began with status 200."""
    found = _read(data, secrets)
    code, kind = _code(found), found.type or ""
    if _too_long(found) or says_too_long(found.message or ""):
        return fault_of(400, data, {}, secrets, "")
    if code == "429" or "rate_limit" in f"{code} {kind}" or code == "insufficient_quota":
        return fault_of(429, data, {}, secrets, "")
    return UpstreamFault(f"The model server reported an error: {found.message or 'it gave no reason.'}")


def wait_seconds(headers: dict[str, str]) -> float | None:
    """What `retry-after-ms` or `retry-after` asks for, in seconds; dates are not worth reading here."""
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * scale)
        except (KeyError, ValueError):
            continue
    return None


def _kept(headers: dict[str, str]) -> dict[str, str]:
    """What the caller's own retries need. Only plain text: our answer could not carry anything else."""
    names = ("retry-after", "retry-after-ms")
    return {n: headers[n] for n in names if n in headers and headers[n].isascii() and headers[n].isprintable()}


def _too_long(found: _Error) -> bool:
    return found.code in CODES or found.type in CODES


def _code(found: _Error) -> str | None:
    return None if found.code is None else str(found.code)


def scrubbed(text: str, secrets: Iterable[str]) -> str:
    """The text with stars for every secret in it; the longest first, since one may hold another."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _read(body: bytes, secrets: Iterable[str]) -> _Error:
    found = _shape(body)
    found.message = scrubbed((found.message or "").strip(), secrets)[:_SHOWN]
    if found.code is not None:
        code = scrubbed(str(found.code), secrets)
        found.code = code if _PLAIN_CODE.fullmatch(code) else None
    return found


def _shape(body: bytes) -> _Error:
    try:
        found = _refusal.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        text = body.decode("utf-8", "replace").replace("\0", "").strip()
        return _Error("it answered with an HTML page; is its URL right?" if text.startswith("<") else text)
    if isinstance(found, list):
        found = found[0] if found else _Refusal()
    inner = found.error
    if isinstance(inner, _Error):
        return inner
    detail = found.detail
    if isinstance(detail, list):
        detail = "; ".join(entry.msg for entry in detail if entry.msg)
    return _Error(inner or found.message or detail, found.code, found.type)
