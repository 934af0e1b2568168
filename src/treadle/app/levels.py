"""What stands how high in this process: told to those who watch."""

from __future__ import annotations

from collections.abc import Callable

from treadle.errors import StorageFault
from treadle.ports import UNWATCHED, Jobs, Observer
from treadle.tools.mcp.pool import McpPool


class Levels:
    """Looked at by whoever watches, at any time; the queues, which are in the database, are counted now and then."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._waiting: dict[str, int] = {}
        self._watched = False

    def begin(self, observer: Observer, running: Callable[[], int], pool: McpPool) -> None:
        self._watched = observer is not UNWATCHED
        observer.level("treadle.responses.running", "Responses that are being made.", lambda: {"": running()})
        observer.level("treadle.mcp.sessions", "Open sessions with MCP servers.", lambda: {"": pool.open_sessions})
        observer.level("treadle.jobs.waiting", "Jobs that nobody works on yet.", lambda: self._waiting)

    async def look(self) -> None:
        """Counts the queues, if somebody watches."""
        if not self._watched:
            return
        try:
            found = await self._jobs.waiting()
        except StorageFault:
            return  # the last counts stand; requests tell of the database
        # A kind whose queue is empty now is told as such.
        self._waiting = {**dict.fromkeys(self._waiting, 0), **found}
