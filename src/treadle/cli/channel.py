"""Requests to the API as commands make them: over HTTP to a running server, or to the app in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import aiohttp
import msgspec
from starlette.types import ASGIApp, Scope

from treadle.client.exchange import BrokenOff, Exchange

_CONNECT_SECONDS = 10.0
_SILENT_SECONDS = 300.0
_LEAVE_SECONDS = 5.0


class Unreachable(Exception):
    """The server cannot be reached, or broke off; the message says which and how."""


class Body(msgspec.Struct, frozen=True):
    """What a request carries: `parts` gives `length` bytes, once."""

    kind: str
    length: int
    parts: Callable[[], AsyncIterator[bytes]]


class Reply(msgspec.Struct, frozen=True):
    """A response. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Channel(Protocol):
    """A way to the API. `place` says where it leads, as in "at http://…"."""

    @property
    def place(self) -> str: ...

    async def send(self, method: str, path: str, body: Body | None = None) -> Reply:
        """One request; `path` begins with /v1 and is quoted already. Unreachable if there is no response."""
        ...


class HttpChannel:
    """To the server at `url`, which has no /v1 at its end. The session is the caller's to close."""

    def __init__(self, session: aiohttp.ClientSession, url: str, key: str) -> None:
        self.place = f"at {url}"
        self._url = url
        self._session = session
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    async def send(self, method: str, path: str, body: Body | None = None) -> Reply:
        headers = dict(self._headers)
        if body is not None:
            headers |= {"content-type": body.kind, "content-length": str(body.length)}
        try:
            async with self._session.request(
                method,
                self._url + path,
                headers=headers,
                data=None if body is None else body.parts(),
                allow_redirects=False,  # a body that is read once cannot be sent again
            ) as answer:
                found = {name.lower(): value for name, value in answer.headers.items()}
                return Reply(answer.status, found, await answer.read())
        except TimeoutError as error:
            raise Unreachable(f"{self._url} does not answer in time") from error
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno
            reason = os.strerror(number) if number and number > 0 else error.os_error.strerror or str(error.os_error)
            raise Unreachable(f"{self._url} cannot be reached: {reason}") from error
        except UnicodeError as error:  # from looking up the host
            raise Unreachable(f"{self._url} cannot be reached: no host can have that name") from error
        except aiohttp.ClientError as error:
            raise Unreachable(f"{self._url} broke off: {str(error) or type(error).__name__}") from error


def open_session() -> aiohttp.ClientSession:
    """A session with the patience that uploading and indexing need."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS)
    return aiohttp.ClientSession(timeout=timeout)


class AppChannel:
    """To an app whose lifespan runs already, in the same event loop."""

    def __init__(self, app: ASGIApp, place: str) -> None:
        self.place = place
        self._app = app

    async def send(self, method: str, path: str, body: Body | None = None) -> Reply:
        exchange = Exchange(self._app, _scope(method, path, body), _nothing() if body is None else body.parts())
        task = exchange.start()
        try:
            status, headers = await exchange.head()
            found = bytearray()
            while part := await exchange.read():
                found += part
        except BrokenOff as fault:
            raise Unreachable(str(fault)) from fault
        finally:
            exchange.leave()
            # It may still read from the caller's file.
            await asyncio.wait([task], timeout=_LEAVE_SECONDS)
        return Reply(status, {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}, bytes(found))


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


def _scope(method: str, path: str, body: Body | None) -> Scope:
    address, _, query = path.partition("?")
    headers = [(b"host", b"treadle.localhost")]
    if body is not None:
        headers += [(b"content-type", body.kind.encode()), (b"content-length", str(body.length).encode())]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": address,
        "raw_path": address.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("treadle.localhost", None),
    }
