"""A session with a server of tools: owned by one task from its opening to its end, shared by whoever borrows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from treadle.tools.mcp.faults import Fault
from treadle.tools.mcp.target import Kind, Limits, Target

if TYPE_CHECKING:
    # The SDK behind it takes more than a second to import: that happens in a thread, when it is first needed.
    from treadle.tools.mcp.client import Link


class _Open(Protocol):
    def __call__(
        self, target: Target, kind: Kind, limits: Limits, *, on_end: Callable[[], None], on_change: Callable[[], None]
    ) -> AbstractAsyncContextManager[Link]: ...


def _seam() -> _Open:
    from treadle.tools.mcp.client import open_link

    return open_link


class Session:
    """`borrow` and `release` bracket every use; a session that nobody borrows closes after `idle` seconds.

    `on_open` is told what the server speaks. `on_end` is called as soon as the session is not to be lent any more,
    and may be called again. `on_change` is called when the server says that its tools are others now.
    """

    def __init__(
        self,
        target: Target,
        kinds: Sequence[Kind],
        limits: Limits,
        *,
        idle: float,
        on_open: Callable[[Kind], None],
        on_end: Callable[[Session], None],
        on_change: Callable[[], None],
    ) -> None:
        self.listing = asyncio.Lock()
        """Held while the list of tools is fetched, so that a crowd fetches it once."""
        self.changes = 0
        """How often the server said that its tools are others now."""
        self._borrowed = 0
        self._idle = idle
        self._on_open = on_open
        self._on_end = on_end
        self._on_change = on_change
        self._timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        self._leave = asyncio.Event()
        self._link: Link | None = None
        self._fault: Fault | None = None
        self.task = asyncio.create_task(self._own(target, kinds, limits), name="mcp session")

    @property
    def busy(self) -> bool:
        return self._borrowed > 0

    def borrow(self) -> None:
        self._borrowed += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        self._borrowed -= 1
        if self._borrowed == 0 and not self._leave.is_set():
            if self._fault is not None:
                self._leave.set()
            else:
                self._timer = asyncio.get_running_loop().call_later(self._idle, self.close)

    async def link(self) -> Link:
        """The open link, waiting for it. Fault if the session could not be opened."""
        await self._settled.wait()
        if self._link is None:
            raise self._fault or Fault("broke off the session", lost=True, unrun=True)
        return self._link

    def retire(self, fault: Fault) -> None:
        """Lends to nobody any more, and closes as soon as it is given back by all."""
        self._fault = self._fault or fault
        self._on_end(self)
        if not self.busy:
            self.close()

    def close(self) -> None:
        self._on_end(self)
        self._leave.set()

    async def _own(self, target: Target, kinds: Sequence[Kind], limits: Limits) -> None:
        try:
            await self._open_one(target, kinds, limits)
        except Fault as fault:
            self._fault = fault
        except (Exception, BaseExceptionGroup):  # noqa: BLE001 - the SDK's farewell, after the last use
            self._fault = self._fault or Fault("broke off the session", lost=True)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._on_end(self)
            self._settled.set()

    async def _open_one(self, target: Target, kinds: Sequence[Kind], limits: Limits) -> None:
        """Keeps the first kind of session that the server understands, until it is time to leave."""
        first: Fault | None = None
        for kind in kinds:
            try:
                await self._keep(target, kind, limits)
                return
            except Fault as fault:
                if self._settled.is_set():
                    return
                # What the first kind met says most, unless a later one got as far as being asked who it is.
                first = fault if first is None or fault.authentication else first
                if not fault.elsewhere:
                    break
        assert first is not None
        raise first

    async def _keep(self, target: Target, kind: Kind, limits: Limits) -> None:
        open_link = await asyncio.to_thread(_seam)
        async with open_link(target, kind, limits, on_end=self._broke_off, on_change=self._changed) as link:
            self._link = link
            self._on_open("http-handshake" if kind == "http" and not link.modern else kind)
            self._settled.set()
            await self._leave.wait()
            self._on_end(self)

    def _changed(self) -> None:
        self.changes += 1
        self._on_change()

    def _broke_off(self) -> None:
        # Before the link is open, the end of one kind of session is not the end of this. Afterwards, requests on their
        # way still learn whether they were turned away: the SDK wakes the others.
        if self._link is not None:
            self.retire(Fault("closed the session", lost=True, unrun=True))
