"""What can go wrong between us and a server of tools, said once and without secrets.

A `Fault` knows the cause but not the label: sessions are shared by requests that may call one server differently.
The pool adds the label when it raises the wire error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from http import HTTPStatus
from typing import Literal
from urllib.parse import parse_qsl, unquote

from treadle.errors import RemoteFault, ServerError
from treadle.ports import RemoteServer

_SHORTEST_SECRET = 4
"""Shorter values (`?v=1`) keep nothing secret, and removing them would garble the message."""

_LONGEST_CAUSE = 600


class Fault(Exception):
    """Why a server could not be used. `cause` continues the sentence `MCP server 'label' ...`."""

    def __init__(
        self,
        cause: str,
        *,
        kind: Literal["protocol", "http"] = "http",
        number: int = 0,
        authentication: bool = False,
        unrun: bool = False,
        lost: bool = False,
        elsewhere: bool = False,
        error: ServerError | None = None,
    ) -> None:
        super().__init__(cause)
        self.cause = cause
        self.kind: Literal["protocol", "http"] = kind
        self.number = number
        self.authentication = authentication
        self.unrun = unrun
        """The request surely had no effect: it never left, or it was turned away at the door."""
        self.lost = lost
        """The session is of no more use."""
        self.elsewhere = elsewhere
        """What answered may speak another transport."""
        self.error = error
        """Raise this instead: an error that is not about the server, such as an address that is refused."""

    def wire(self, server: RemoteServer) -> ServerError:
        """The error for whoever named the server."""
        if self.error is not None:
            return self.error
        cause = scrub(self.cause, server)
        if len(cause) > _LONGEST_CAUSE:
            cause = cause[:_LONGEST_CAUSE] + " …"
        return RemoteFault(
            f"MCP server {server.label!r} {cause}.",
            kind=self.kind,
            number=self.number,
            authentication=self.authentication,
        )


def of_status(status: int, *, had_credentials: bool) -> Fault:
    """The fault that an HTTP status means by itself."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "an unknown status"
    said = f"{status} {phrase}"
    if status in (401, 403):
        given = " and rejected the credentials it was given" if had_credentials else ""
        return Fault(
            f"needs authentication{given}: it answered {said}",
            number=status,
            authentication=True,
            unrun=True,
            lost=True,
        )
    if status == 404:
        return Fault(f"was not found at its address: {said}", number=status, unrun=True, lost=True, elsewhere=True)
    return Fault(
        f"answered {said}",
        number=status,
        lost=status >= 500,
        elsewhere=400 <= status < 500 and status != 429,
    )


def scrub(text: str, server: RemoteServer) -> str:
    """`text` without anything that `server` was given in confidence, in case it repeats it to us."""
    for secret in sorted(set(_secrets(server)), key=len, reverse=True):
        text = text.replace(secret, "[hidden]")
    return text


def _secrets(server: RemoteServer) -> Iterator[str]:
    for _, value in server.headers:
        yield from _long(value, *value.split())
    # By hand: an address that is broken keeps its secrets all the same.
    place, _, query = server.url.partition("?")
    userinfo = place.partition("//")[2].rpartition("@")[0]
    password = userinfo.partition(":")[2]
    yield from _long(query, unquote(query), userinfo, password, unquote(password))
    for _, value in parse_qsl(query):
        yield from _long(value)


def _long(*values: str) -> Iterator[str]:
    yield from (value for value in values if len(value) >= _SHORTEST_SECRET)


class Attempt:
    """One request on its way. The SDK sends it in a task of its own but in the caller's context, so what happens
    down there can be told to the caller through this object, and to nobody else."""

    def __init__(self) -> None:
        self.sent = False
        self.fault: Fault | None = None


attempt: ContextVar[Attempt | None] = ContextVar("treadle_mcp_attempt", default=None)
