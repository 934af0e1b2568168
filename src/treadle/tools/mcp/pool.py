"""McpPool: the RemoteTools adapter. Sessions are shared by all who name the same server with the same credentials."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from treadle.ports import AddressGuard, RemoteResult, RemoteServer, RemoteTool
from treadle.tools.mcp.faults import Fault
from treadle.tools.mcp.session import Session
from treadle.tools.mcp.target import Kind, Limits, Target

if TYPE_CHECKING:
    from treadle.tools.mcp.client import Link

T = TypeVar("T")

STDIO = "stdio:"
_KIND_SECONDS = 3600.0
_MOST_LISTS = 512
_MOST_KINDS = 2048
_CLOSING_SECONDS = 10.0
_DETECT: tuple[Kind, ...] = ("http", "sse")


@dataclass(frozen=True)
class StdioCommand:
    """How the operator starts a server that speaks over its standard streams. `env` is added to a safe minimum."""

    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Listed:
    tools: list[RemoteTool]
    until: float


class McpPool:
    """RemoteTools over the official SDK.

    `guard` decides about addresses that callers name (`by_operator` ones need no permission). `stdio` are the
    commands that a URL `stdio:<name>` stands for; only servers named by the operator may use them. Times are
    seconds: `idle` until an unused session closes, `list_ttl` for which a list of tools is believed, the rest bound
    one step each. `sessions` is the most that are open; beyond, the one unused for longest makes room. `max_body` is
    the most bytes of one answer. Create it inside the event loop that uses it, and `close` it there.
    """

    def __init__(
        self,
        guard: AddressGuard,
        *,
        stdio: Mapping[str, StdioCommand] | None = None,
        connect_seconds: float = 15.0,
        list_seconds: float = 30.0,
        call_seconds: float = 60.0,
        idle: float = 300.0,
        list_ttl: float = 300.0,
        sessions: int = 64,
        max_body: int = 32 << 20,
    ) -> None:
        self._guard = guard
        self._stdio = dict(stdio or {})
        self._limits = Limits(connect=connect_seconds, listing=list_seconds, call=call_seconds, max_body=max_body)
        self._idle = idle
        self._list_ttl = list_ttl
        self._most = sessions
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._lists: OrderedDict[bytes, _Listed] = OrderedDict()
        self._kinds: OrderedDict[str, tuple[Kind, float]] = OrderedDict()
        self._room = asyncio.Event()
        self._closed = False

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)

    async def list_tools(self, server: RemoteServer) -> list[RemoteTool]:
        """All pages of the server's list, from the cache while it is fresh. RemoteFault, AddressRefused,
        InvalidRequest for a URL that is refused on sight."""
        key = _key(server)
        fresh = self._fresh(key)
        if fresh is not None:
            return fresh
        return await self._using(server, key, lambda session, link: self._list(key, session, link))

    async def call(self, server: RemoteServer, name: str, arguments: str) -> RemoteResult:
        """Runs one call. Errors as for `list_tools`; a tool that fails gives a result that says so."""
        return await self._using(server, _key(server), lambda _, link: link.call(name, arguments))

    async def close(self) -> None:
        """Ends all sessions; none is left when it returns."""
        self._closed = True
        for session in list(self._sessions.values()):
            session.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSING_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lists.clear()

    async def _list(self, key: bytes, session: Session, link: Link) -> list[RemoteTool]:
        try:
            async with asyncio.timeout(self._limits.listing):
                await session.listing.acquire()
        except TimeoutError:
            raise Fault(f"did not list its tools within {self._limits.listing:g} s", number=408) from None
        try:
            fresh = self._fresh(key)
            if fresh is not None:
                return fresh
            changes = session.changes
            tools = await link.list_tools()
        finally:
            session.listing.release()
        if session.changes == changes and self._list_ttl > 0:
            self._lists[key] = _Listed(tools, time.monotonic() + self._list_ttl)
            _trim(self._lists, _MOST_LISTS)
        return list(tools)

    def _fresh(self, key: bytes) -> list[RemoteTool] | None:
        listed = self._lists.get(key)
        if listed is None or listed.until <= time.monotonic():
            return None
        self._lists.move_to_end(key)
        return list(listed.tools)

    async def _using(self, server: RemoteServer, key: bytes, use: Callable[[Session, Link], Awaitable[T]]) -> T:
        """`use` with a session: once more on a fresh one if the first had gone and surely nothing was run."""
        try:
            try:
                return await self._once(server, key, use)
            except _Again:
                return await self._once(server, key, use)
        except _Again as again:
            raise again.fault.wire(server) from None
        except Fault as fault:
            # What lies under it is the SDK's, and may hold credentials: not even in a traceback.
            raise fault.wire(server) from None

    async def _once(self, server: RemoteServer, key: bytes, use: Callable[[Session, Link], Awaitable[T]]) -> T:
        session = await self._borrow(server, key)
        try:
            link = await session.link()
            try:
                return await use(session, link)
            except Fault as fault:
                if fault.lost:
                    session.retire(fault)
                if fault.lost and fault.unrun and not fault.authentication:
                    raise _Again(fault) from fault
                raise
        finally:
            session.release()
            self._room.set()

    async def _borrow(self, server: RemoteServer, key: bytes) -> Session:
        session = self._sessions.get(key)
        if session is None:
            target = self._target(server)
            await self._make_room()
            # Another may have opened it while we waited.
            session = self._sessions.get(key) or self._open(key, server, target)
        self._sessions.move_to_end(key)
        session.borrow()
        return session

    def _open(self, key: bytes, server: RemoteServer, target: Target) -> Session:
        place = _place(server.url)

        def opened(kind: Kind) -> None:
            self._kinds[place] = (kind, time.monotonic() + _KIND_SECONDS)
            _trim(self._kinds, _MOST_KINDS)

        def ended(gone: Session) -> None:
            if self._sessions.get(key) is gone:
                del self._sessions[key]
            self._room.set()

        def changed() -> None:
            self._lists.pop(key, None)

        session = Session(
            target,
            self._kinds_for(server.url, place),
            self._limits,
            idle=self._idle,
            on_open=opened,
            on_end=ended,
            on_change=changed,
        )
        self._sessions[key] = session
        self._tasks.add(session.task)
        session.task.add_done_callback(self._tasks.discard)
        return session

    def _kinds_for(self, url: str, place: str) -> Sequence[Kind]:
        """What to try, in order: what worked within the last hour first."""
        if url.startswith(STDIO):
            return ("stdio",)
        known = self._kinds.get(place)
        if known is None or known[1] <= time.monotonic():
            return _DETECT
        return (known[0], *(kind for kind in _DETECT if kind != known[0]))

    def _target(self, server: RemoteServer) -> Target:
        if not server.url.startswith(STDIO):
            if server.by_operator:
                return Target(server.url, server.headers)
            self._guard.check_url(server.url, "server_url")
            return Target(server.url, server.headers, self._guard)
        command = self._stdio.get(server.url.removeprefix(STDIO)) if server.by_operator else None
        if command is None:
            raise Fault("is not among the commands of the configuration", unrun=True)
        return Target(server.url, command=(command.command, *command.args), env=command.env)

    async def _make_room(self) -> None:
        """Waits until one more session may be open, at most as long as connecting may take."""
        try:
            async with asyncio.timeout(self._limits.connect):
                while len(self._sessions) >= self._most and not self._closed:
                    idle = next((session for session in self._sessions.values() if not session.busy), None)
                    if idle is not None:
                        idle.close()
                        continue
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise Fault(f"cannot be connected to: all {self._most} connections are in use", unrun=True) from None
        if self._closed:
            raise Fault("cannot be used any more: this server is shutting down", unrun=True)


class _Again(Exception):
    """The session had gone before the request: it may be sent once more."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.cause)
        self.fault = fault


def _key(server: RemoteServer) -> bytes:
    """One session for one address, set of credentials, and kind of permission; no secret can be read from it."""
    digest = hashlib.sha256()
    for text in (server.url, str(server.by_operator), *(text for header in server.headers for text in header)):
        digest.update(f"{len(text)}:{text}".encode())
    return digest.digest()


def _place(url: str) -> str:
    return url.partition("?")[0]


def _trim(entries: OrderedDict[bytes, T] | OrderedDict[str, T], most: int) -> None:
    while len(entries) > most:
        entries.popitem(last=False)
