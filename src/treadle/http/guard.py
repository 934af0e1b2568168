"""Keeps web pages from using the server behind their visitor's back.

A browser on this machine reaches a server on loopback too. So a request that says it comes from a page (`Origin`) must
come from our own or from a configured one. That holds for WebSockets too, which browsers open without asking first and
whose answers any page may read. And on loopback the `Host` must not be a domain we do not know: there it
means that somebody's DNS was made to point here. Addresses and names without a dot cannot be made to.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from treadle.errors import Forbidden
from treadle.http.replies import refusal, refused_handshake


class Guard:
    """Refuses with 403 what a foreign page sent. `hosts` None: any `Host` will do."""

    def __init__(self, app: ASGIApp, *, hosts: Collection[str] | None, origins: Collection[str]) -> None:
        self._app = app
        self._hosts = None if hosts is None or "*" in hosts else frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (fault := self._fault(scope)) is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await refused_handshake(fault)(scope, receive, send)
        else:
            await refusal(fault)(scope, receive, send)

    def _fault(self, scope: Scope) -> Forbidden | None:
        host = origin = ""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value.decode("latin-1").lower()
            elif name == b"origin":
                origin = value.decode("latin-1")
        if self._hosts is not None and host and not self._known(_name(host)):
            return Forbidden(
                f"This server is not called '{_name(host)[:100]}'. If it is, add the name to server.allowed_hosts."
            )
        if (
            origin
            and "*" not in self._origins
            and origin not in self._origins
            and origin.split("://")[-1].lower() != host
        ):
            return Forbidden(
                f"Pages of '{origin[:100]}' may not use this server. If they may, add it to server.cors_origins."
            )
        return None

    def _known(self, name: str) -> bool:
        if "." not in name or name.endswith(".localhost") or (self._hosts is not None and name in self._hosts):
            return True
        return name.replace(".", "").isdigit()  # an IPv4 address: no domain ends in a number


def _name(host: str) -> str:
    """The host without its port; an IPv6 address keeps its brackets."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]
