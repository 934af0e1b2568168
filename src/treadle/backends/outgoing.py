"""The way out to addresses that callers and models name: every hop checked, pinned and bounded (bug case 74).

A connection goes only to addresses that the guard gave for this very hop; the name stays in TLS and in `Host`.
Redirects are followed here, not by the HTTP client, and each hop is judged anew. No cookies, no proxies from the
environment, and headers that the caller gave stay with the origin they were given for.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from contextvars import ContextVar
from http import HTTPStatus
from types import TracebackType
from typing import Self

import aiohttp
import msgspec
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from treadle.errors import AddressRefused, InvalidRequest, ToolFault
from treadle.ports import AddressGuard

MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_SLICE = 1_048_576
"""Bytes that are unpacked at a time."""
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_OURS = frozenset({"host", "accept-encoding", "connection", "content-length", "transfer-encoding"})
"""Headers that a caller does not decide: they tell where a request goes and where it ends."""
_AGENT = "Mozilla/5.0 (compatible; Treadle)"

_pinned: ContextVar[tuple[str, ...]] = ContextVar("pinned", default=())
"""Where the current task may connect to; the tasks that open its sockets inherit it."""


class Body(msgspec.Struct, frozen=True):
    """What an address answered. `cut` tells that there was more than the limit."""

    url: str
    content_type: str
    charset: str
    data: bytes
    cut: bool = False


class Answer:
    """An open answer: its head is known, its body is still to be read."""

    def __init__(self, response: aiohttp.ClientResponse, url: str) -> None:
        self.url = url
        self.status = response.status
        self.content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        self.charset = _charset(response.headers.get("content-type", ""))
        self._response = response

    async def read(self, limit: int, *, cut: bool = False) -> Body:
        """The unpacked body, of at most `limit` bytes. ToolFault if it is larger, unless it may be cut."""
        data = bytearray()
        more = False
        async with aclosing(_unpacked(self._response, self.url)) as pieces:
            async for piece in pieces:
                room = limit - len(data)
                data += piece[:room]
                if len(piece) > room:
                    more = True
                    break
        if more and not cut:
            raise ToolFault(f"What {self.url} sends is larger than the {limit} bytes that are permitted.")
        return Body(self.url, self.content_type, self.charset, bytes(data), more)


class OutgoingSession:
    """Gets what callers name. `timeout_seconds` bounds a whole retrieval, `max_bytes` its unpacked body.

    `tls` replaces the system's certificate authorities. Use as a context manager or close it.
    """

    def __init__(
        self,
        guard: AddressGuard,
        *,
        timeout_seconds: float = 30.0,
        max_bytes: int = 20_971_520,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self._guard = guard
        self._seconds = timeout_seconds
        self._tls: ssl.SSLContext | bool = tls if tls is not None else True
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def fetch(
        self,
        url: str,
        *,
        param: str = "url",
        headers: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
        cut: bool = False,
    ) -> Body:
        """What `url` answers with a status of success.

        InvalidRequest, naming `param`, for a URL refused on sight; AddressRefused for one refused later; ToolFault
        when it cannot be had: unreachable, another status, too slow, or larger than `max_bytes` and not to be `cut`.
        """
        async with self.open(url, param=param, headers=headers) as answer:
            return await answer.read(self.max_bytes if max_bytes is None else max_bytes, cut=cut)

    @asynccontextmanager
    async def open(
        self, url: str, *, param: str = "url", headers: Mapping[str, str] | None = None, accept: str = "*/*"
    ) -> AsyncIterator[Answer]:
        """The answer with its body unread, for callers that decide by its type. Raises like `fetch`; the time limit
        holds until the context is left."""
        self._guard.check_url(url, param)
        here = url
        limit = asyncio.timeout(self._seconds)
        try:
            async with limit:
                response, here = await self._follow(url, dict(headers or {}), accept)
                try:
                    if not 200 <= response.status < 300:
                        raise ToolFault(f"{here} answered {_status(response.status)}.")
                    yield Answer(response, here)
                finally:
                    response.close()
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolFault(f"{here} took longer than the {self._seconds:g} s that are permitted.") from None
        except aiohttp.ClientError as error:
            raise ToolFault(f"{here} {_cause(error)}.") from None

    async def _follow(self, url: str, headers: dict[str, str], accept: str) -> tuple[aiohttp.ClientResponse, str]:
        """The first answer that is no redirect, and where it was found."""
        try:
            target = URL(url)
        except ValueError:
            raise ToolFault(f"{url} is no URL that can be asked.") from None
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._get(target, headers, accept)
            location = response.headers.get("location", "")
            if response.status not in _REDIRECTS or not location:
                return response, str(target)
            response.close()
            try:
                following = target.join(URL(location)).with_fragment(None)
                self._guard.check_url(str(following), "url")
            except ValueError:
                raise ToolFault(f"{target} redirects to what is no URL.") from None
            except InvalidRequest as refusal:
                raise AddressRefused(f"{target} redirects to an address that is refused. {refusal.message}") from None
            if following.origin() != target.origin():
                headers = {}
            target = following
        raise ToolFault(f"{url} redirects more than {MAX_REDIRECTS} times.")

    async def _get(self, target: URL, headers: Mapping[str, str], accept: str) -> aiohttp.ClientResponse:
        host, port = target.raw_host, target.port
        if host is None or port is None:
            raise ToolFault(f"{target} names no host.")
        addresses = tuple(await self._guard.resolve(host, port))
        if not addresses:
            raise ToolFault(f"{target} has no address.")
        own = {"user-agent": _AGENT, "accept": accept}
        own |= {name.lower(): value for name, value in headers.items() if name.lower() not in _OURS}
        token = _pinned.set(addresses)
        try:
            return await self._client().get(
                target,
                headers={**own, "accept-encoding": "gzip, deflate"},
                allow_redirects=False,
                ssl=self._tls,
            )
        finally:
            _pinned.reset(token)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                resolver=_PinnedResolver(),
                socket_factory=_pinned_socket,
                use_dns_cache=False,
                # A kept connection would serve a later request without its address being judged again.
                force_close=True,
                limit=100,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
            )
        return self._session


def guarded_session(guard: AddressGuard, *, timeout_seconds: float = 60.0) -> aiohttp.ClientSession:
    """An ordinary client for somebody else's code: whatever it asks for, and wherever a redirect leads, goes only to
    addresses that the guard permits; else AddressRefused, or ToolFault for a host that is not there. Needs the loop."""

    async def pinned(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        host, port = request.url.raw_host, request.url.port
        if host is None or port is None:
            raise ToolFault(f"{request.url} names no host.")
        token = _pinned.set(tuple(await guard.resolve(host, port)))
        try:
            return await send(request)
        finally:
            _pinned.reset(token)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=_PinnedResolver(), socket_factory=_pinned_socket, use_dns_cache=False),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=timeout_seconds),
        trust_env=False,
        middlewares=(pinned,),
    )


class _PinnedResolver(AbstractResolver):
    """Answers with the addresses that were judged for the hop, whatever the DNS says now."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in _pinned.get()
        ]

    async def close(self) -> None:
        pass


def _pinned_socket(
    found: tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, object],
) -> socket.socket:
    """The last check before a packet leaves: HTTP clients do not ask a resolver about literal addresses."""
    family, kind, proto, _, address = found
    if not isinstance(address, tuple) or address[0] not in _pinned.get():
        raise AddressRefused("A connection was about to go to an address that had not been checked.")
    return socket.socket(family, kind, proto)


async def _unpacked(response: aiohttp.ClientResponse, url: str) -> AsyncGenerator[bytes, None]:
    """The body's pieces, without their content encoding; each piece is bounded."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        while piece := await response.content.readany():
            yield piece
        return
    if encoding not in _WINDOWS:
        raise ToolFault(f"{url} sends its body in the encoding '{encoding[:40]}', which was not asked for.")
    unpacker = zlib.decompressobj(_WINDOWS[encoding])
    first = True
    try:
        while not unpacker.eof and (packed := await response.content.readany()):
            if first and encoding == "deflate" and packed[0] & 0x0F != 8:
                unpacker = zlib.decompressobj(-15)  # what many servers take "deflate" to mean
            first = False
            while packed and not unpacker.eof:
                yield unpacker.decompress(packed, _SLICE)
                packed = unpacker.unconsumed_tail
                await asyncio.sleep(0)  # unpacking much must not stop everybody else
    except zlib.error:
        raise ToolFault(f"{url} sends a body that cannot be unpacked.") from None


def _charset(content_type: str) -> str:
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'").lower()
    return ""


def _status(status: int) -> str:
    return f"{status} {HTTPStatus(status).phrase}" if status in HTTPStatus._value2member_map_ else str(status)


def _cause(error: Exception) -> str:
    """What went wrong, without addresses or anything else of the machine's inside."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "has no valid certificate"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return "cannot be spoken to over TLS"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "cannot be reached"
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
        return "broke off the connection"
    if isinstance(error, aiohttp.ClientResponseError):
        return "did not answer in valid HTTP"
    return "cannot be had"
