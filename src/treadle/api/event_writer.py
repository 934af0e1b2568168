"""What streamed background responses say, on its way into the log and to those who follow.

Followers are only ever shown what is in the log: after a crash nobody has read what is not there. One transaction
writes what all responses of the process have said in the last moment, so that a token costs little.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from weakref import WeakValueDictionary

from treadle.errors import StorageFault
from treadle.ports import EventChunk, EventLog, Job
from treadle.scope import Scope
from treadle.wire.events import Event
from treadle.wire.frames import frame_into

log = logging.getLogger("treadle.background")

FLUSH_SECONDS = 0.08
"""How long events are gathered before they are written. Followers see them that much later."""
_RETRY_SECONDS = 0.5
RECENT_BYTES = 262_144
"""What is kept of the end of a running response's log, so that followers need not read it from the database."""


class Live:
    """The log of one response for its followers in this process: the end of it, and word of what is new."""

    def __init__(self) -> None:
        self.local = False
        """The response is made in this process, so that nothing happens to the log without word."""
        self.ended = False
        self._looked_at = -math.inf
        self._recent: deque[EventChunk] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    def publish(self, chunk: EventChunk) -> None:
        """A chunk that is in the log. One that is known already changes nothing."""
        if self._recent:
            last = self._recent[-1].last
            if chunk.last <= last:
                return
            if chunk.first != last + 1:
                self._recent.clear()
                self._size = 0
        self._recent.append(chunk)
        self._size += len(chunk.data)
        while self._size > RECENT_BYTES and len(self._recent) > 1:
            self._size -= len(self._recent.popleft().data)
        self._tell()

    def end(self) -> None:
        self.ended = True
        self._tell()

    def made_here(self, local: bool) -> None:
        self.local = local
        self._tell()

    def since(self, after: int) -> list[EventChunk] | None:
        """The chunks behind a number; None if only the log has them, or knows."""
        if not self._recent or self._recent[0].first > after + 1:
            return None
        return [chunk for chunk in self._recent if chunk.last > after]

    def due(self, seconds: float) -> bool:
        """Whether nobody has looked into the log for that long; whoever is told so looks, for all."""
        now = time.monotonic()
        if self.local or now - self._looked_at < seconds:
            return False
        self._looked_at = now
        return True

    async def wait(self, seconds: float) -> None:
        """Until something is new, but not longer than that."""
        changed = self._changed
        try:
            async with asyncio.timeout(seconds):
                await changed.wait()
        except TimeoutError:
            return

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Recording:
    """What one response says, from the number `start` on."""

    def __init__(self, job: Job, start: int, live: Live, dirty: Callable[[Recording], None]) -> None:
        self.job = job
        self.live = live
        self.written = start - 1
        """The last number that is in the log."""
        self.lost = False
        self._buffer = bytearray()
        self._first = self._next = start
        self._dirty = dirty
        self._held = False
        self._quiet = asyncio.Event()
        self._quiet.set()
        live.made_here(True)

    def add(self, events: Sequence[Event]) -> None:
        frame_into(events, self._buffer)
        self._next += len(events)
        self._dirty(self)

    async def rest(self, events: Sequence[Event] = ()) -> EventChunk | None:
        """What is not in the log yet, with `events` behind it, for whoever writes it from now on; waits for what is
        being written. It stays here too, in case that fails."""
        await self.hold()
        data = bytearray(self._buffer)
        frame_into(events, data)
        return EventChunk(self._first, self._next + len(events) - 1, bytes(data)) if data else None

    async def hold(self) -> None:
        """Keeps what is not in the log yet from going there; waits for what is being written."""
        self._held = True
        await self._quiet.wait()

    def resume(self) -> None:
        self._held = False
        self._dirty(self)

    async def drop(self) -> None:
        """Says nothing more; what is being written still is."""
        await self.hold()
        self._buffer.clear()
        self._next = self._first

    def close(self, last: EventChunk | None, *, ended: bool) -> None:
        """`last` is in the log. `ended`: nothing will ever follow it."""
        self._buffer.clear()
        if last is not None:
            self.live.publish(last)
        if ended:
            self.live.end()
        else:
            self.live.made_here(False)

    # ------------------------------------------------------------------------- used by the writer below

    def take(self) -> EventChunk | None:
        if not self._buffer or self.lost or self._held:
            return None
        chunk = EventChunk(self._first, self._next - 1, bytes(self._buffer))
        self._buffer.clear()
        self._first = self._next
        self._quiet.clear()
        return chunk

    def written_down(self, chunk: EventChunk) -> None:
        self.written = chunk.last
        self._quiet.set()
        self.live.publish(chunk)

    def not_written(self, chunk: EventChunk) -> None:
        self._buffer[:0] = chunk.data
        self._first = chunk.first
        self._quiet.set()


class EventWriter:
    """The recordings of a process, and those who follow them."""

    def __init__(self, events: EventLog, spawn: Callable[[Coroutine[None, None, None]], None]) -> None:
        """`spawn` runs work that outlives whoever asks for it."""
        self._log = events
        self._spawn = spawn
        self._lives: WeakValueDictionary[tuple[str, str, str], Live] = WeakValueDictionary()
        self._dirty: dict[str, Recording] = {}
        self._due = False

    def live(self, scope: Scope, response_id: str) -> Live:
        """Lives for as long as somebody holds it."""
        key = (response_id, scope.tenant, scope.owner)
        found = self._lives.get(key)
        if found is None:
            found = self._lives[key] = Live()
        return found

    def record(self, job: Job, start: int) -> Recording:
        return Recording(job, start, self.live(job.scope, job.id), self._note)

    def _note(self, recording: Recording) -> None:
        self._dirty[recording.job.id] = recording
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush_soon)

    def _flush_soon(self) -> None:
        self._spawn(self._flush())

    async def _flush(self) -> None:
        """Writes what has gathered. One at a time, so that the chunks of a log are written in order."""
        taken = [(recording, chunk) for recording in self._dirty.values() if (chunk := recording.take()) is not None]
        self._dirty.clear()
        wait = FLUSH_SECONDS
        try:
            if taken:
                lost = await self._log.append([(recording.job, chunk) for recording, chunk in taken])
                for recording, chunk in taken:
                    recording.lost = recording.job.id in lost
                    if recording.lost:
                        recording.not_written(chunk)
                    else:
                        recording.written_down(chunk)
        except StorageFault as fault:
            log.warning("events could not be logged and are tried again: %s", fault.message)
            wait = _RETRY_SECONDS
            for recording, chunk in taken:
                recording.not_written(chunk)
                self._dirty[recording.job.id] = recording
        self._due = bool(self._dirty)
        if self._due:
            asyncio.get_running_loop().call_later(wait, self._flush_soon)
