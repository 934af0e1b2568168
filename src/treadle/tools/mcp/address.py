"""Where a server is and how to get there: the address apart from its secrets, and only addresses that are permitted."""

from __future__ import annotations

import base64
import functools
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit, urlunsplit

import httpcore2
import httpx2

from treadle.ports import AddressGuard
from treadle.tools.mcp.faults import Fault

_OURS = frozenset(
    "accept accept-encoding connection content-encoding content-length content-type expect host keep-alive "
    "last-event-id mcp-method mcp-name mcp-protocol-version mcp-session-id proxy-authorization proxy-connection te "
    "trailer transfer-encoding upgrade".split()
)
"""Headers that belong to the protocol; a caller's are left out."""


@dataclass(frozen=True)
class Address:
    """Where a server is, apart from the secrets in its URL and headers."""

    url: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    had_credentials: bool

    @staticmethod
    def of(url: str, headers: Iterable[tuple[str, str]]) -> Address:
        """Fault for a URL that is none."""
        try:
            parts = urlsplit(url)
            port = parts.port
            httpx2.URL(url)
        except (ValueError, httpx2.InvalidURL) as broken:
            raise Fault("has an address that is no URL", unrun=True) from broken
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Fault("has an address that is no http or https URL", unrun=True)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        netloc = host if port is None else f"{host}:{port}"
        sent = [(_bytes(name), _bytes(value)) for name, value in headers if name.lower() not in _OURS]
        if parts.username is not None and not any(name.lower() == b"authorization" for name, _ in sent):
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            sent.append((b"authorization", b"Basic " + base64.b64encode(pair.encode())))
        return Address(
            url=urlunsplit((parts.scheme, netloc, parts.path or "/", "", "")),
            query=parts.query,
            headers=tuple(sent),
            had_credentials=bool(sent or parts.query),
        )


def _bytes(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return text.encode()


@functools.cache
def tls() -> ssl.SSLContext:
    # Loading the certificates takes tens of milliseconds: once, not for each session.
    return httpx2.create_ssl_context()


def joined(base: httpx2.URL, said: str) -> httpx2.URL:
    """Where a redirect leads. Fault if nowhere."""
    try:
        return base.join(said)
    except (ValueError, httpx2.InvalidURL) as broken:
        raise Fault("redirects to something that is no URL", kind="protocol", unrun=True) from broken


def same_origin(base: httpx2.URL, target: httpx2.URL) -> bool:
    if (base.scheme, base.host, base.port) == (target.scheme, target.host, target.port):
        return True
    upgraded = (base.scheme, base.port, target.scheme, target.port) == ("http", None, "https", None)
    return upgraded and base.host == target.host


def unreachable(failed: BaseException, seconds: float) -> str:
    """The reason in the chain of causes that says most."""
    if isinstance(failed, httpcore2.ConnectTimeout):
        return f"cannot be reached: no connection within {seconds:g} s"
    reason = "no connection"
    chain, seen = [failed], set[int]()
    while chain:
        one = chain.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        match one:
            case ConnectionRefusedError():
                return "refused the connection: nothing listens at its address"
            case ssl.SSLCertVerificationError():
                return f"has a certificate that is not valid: {one.verify_message}"
            case ssl.SSLError():
                reason = "the TLS handshake failed"
            case OSError() if type(one).__name__ == "gaierror":
                return "cannot be reached: its host name does not resolve"
            case OSError() if one.strerror:
                reason = one.strerror
            case BaseExceptionGroup():
                chain += one.exceptions
            case _:
                pass
        chain += [cause for cause in (one.__cause__, one.__context__) if cause is not None]
    return f"cannot be reached: {reason}"


class Guarded(httpcore2.AsyncNetworkBackend):
    """Connects only where the guard lets us, to the very addresses that it looked at."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failed: Exception = httpcore2.ConnectError("no address")
        for address in await self._guard.resolve(host, port):
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as one:
                failed = one
        raise failed

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
