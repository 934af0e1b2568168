"""The threads on which an index file is used: one that writes, and a few that search and join what waits.

The store has threads like these. An adapter may not import another one, and these differ: searches of one collection
that wait together are answered together, and the writer clears away what was removed when it has nothing else to do.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, TypeVar

from treadle.errors import StorageFault

T = TypeVar("T")
A = TypeVar("A")

log = logging.getLogger("treadle.index")

WAITING = 10_000
"""Pieces of work that may wait for one kind of thread; beyond that callers get StorageFault at once."""

GROUP = 32
"""Pieces of work that are committed together at most."""

JOINED = 8
"""Searches that are answered together at most. More would save nothing, and all wait for the last."""

ENOUGH = 4
"""Pieces for each helper that is called: fewer are done before it has woken up."""

IDLE_SECONDS = 1.0
"""How long the writer is idle before it folds the write-ahead log back into the file."""

BUSY_MILLISECONDS = 30_000
"""How long a transaction waits for one of another process."""

Connection = sqlite3.Connection
Work = Callable[[Connection, Sequence[Any]], Sequence[object]]


def fault(error: sqlite3.Error) -> StorageFault:
    """What callers may know about `error`: its kind, and neither SQL nor data."""
    name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
    known = {
        "SQLITE_BUSY": "The index is busy.",
        "SQLITE_FULL": "The index's disk is full.",
        "SQLITE_READONLY": "The index cannot be written.",
        "SQLITE_CORRUPT": "The index file is damaged.",
        "SQLITE_NOTADB": "The index file is not a database.",
    }
    result = StorageFault(known.get(name, f"The index failed ({name})."))
    result.__cause__ = error
    return result


def _failure(error: BaseException) -> BaseException:
    return fault(error) if isinstance(error, sqlite3.Error) else error


class _Job:
    """Work for one caller. Jobs of the same `key` may be done by one call of `work` with all their arguments."""

    __slots__ = ("argument", "error", "future", "key", "loop", "value", "work")

    def __init__(self, work: Work, argument: object, key: Hashable) -> None:
        self.work = work
        self.argument = argument
        self.key = key
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.value: object = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        if self.future.done():  # its caller was cancelled
            if self.error is not None:
                log.warning("index work failed after its caller had gone: %r", self.error)
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.value)


def _deliver(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        try:
            job.loop.call_soon_threadsafe(job.settle)
        except RuntimeError:
            log.warning("a result came after its event loop was closed")


class Threads:
    """Threads that share a queue. Each has a connection of its own, opened by `open_connection`."""

    def __init__(self, name: str, open_connection: Callable[[], Connection], count: int) -> None:
        self._waiting: deque[_Job] = deque()
        self._wake = threading.Condition()
        self._open = True
        self._connections = [open_connection() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._run, args=(connection,), name=f"treadle-index-{name}", daemon=True)
            for connection in self._connections
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        """Must be called in an event loop. StorageFault when closed or when too much is waiting."""
        return self._put(_Job(lambda connection, _: [work(connection)], None, None))

    def join(
        self, key: Hashable, work: Callable[[Connection, Sequence[A]], Sequence[T]], argument: A
    ) -> asyncio.Future[T]:
        """Like `submit`. Arguments that wait with the same `key` may be handed to `work` together; it gives one result
        for each."""
        return self._put(_Job(work, argument, key))

    def close(self) -> None:
        """Waits until everything submitted before has run."""
        with self._wake:
            self._open = False
            self._wake.notify_all()
        for thread, connection in zip(self._threads, self._connections, strict=True):
            if thread.ident is None:  # never started
                connection.close()
            else:
                thread.join()

    def _put(self, job: _Job) -> asyncio.Future[Any]:
        with self._wake:
            if not self._open:
                raise StorageFault("The index is closed.")
            if len(self._waiting) >= WAITING:
                raise StorageFault("The index has too much to do.")
            self._waiting.append(job)
            self._wake.notify()
        return job.future

    def _run(self, connection: Connection) -> None:
        try:
            self.serve(connection)
        finally:
            connection.close()

    def serve(self, connection: Connection) -> None:
        raise NotImplementedError


class Searchers(Threads):
    """Each call of work sees one snapshot of the file."""

    def serve(self, connection: Connection) -> None:
        while jobs := self._take():
            try:
                connection.execute("BEGIN")
                values = jobs[0].work(connection, [job.argument for job in jobs])
                connection.execute("COMMIT")
                for job, value in zip(jobs, values, strict=True):
                    job.value = value
            except BaseException as error:  # noqa: BLE001 -- it belongs to the callers, and the thread must go on
                for job in jobs:
                    job.error = _failure(error)
                _roll_back(connection)
            _deliver(jobs)

    def _take(self) -> list[_Job]:
        """The job that waits longest with all that can be done together with it; nothing at the end."""
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or not self._open)
            if not self._waiting:
                return []
            jobs = [self._waiting.popleft()]
            if jobs[0].key is not None:
                others = [job for job in self._waiting if job.key == jobs[0].key][: JOINED - 1]
                for job in others:
                    self._waiting.remove(job)
                jobs += others
            return jobs


class Writer(Threads):
    """Commits all that waits together, each piece in a savepoint of its own, and only then tells the callers.

    `chore` runs in a transaction of its own when nothing waits, as long as it says that there is more to do.
    """

    def __init__(self, open_connection: Callable[[], Connection], chore: Callable[[Connection], bool]) -> None:
        super().__init__("writer", open_connection, 1)
        self._chore = chore

    def serve(self, connection: Connection) -> None:
        chores, dirty = True, False
        while True:
            jobs = self._take(0.0 if chores else IDLE_SECONDS if dirty else None)
            if jobs:
                _run_group(connection, jobs)
                _deliver(jobs)
                chores = dirty = True
            elif not self._open:
                return
            elif chores:
                chores = self._do_chore(connection)
            else:
                dirty = not _fold_log(connection)

    def _take(self, seconds: float | None) -> list[_Job]:
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or not self._open, seconds)
            return [self._waiting.popleft() for _ in range(min(GROUP, len(self._waiting)))]

    def _do_chore(self, connection: Connection) -> bool:
        try:
            connection.execute("BEGIN IMMEDIATE")
            more = self._chore(connection)
            connection.execute("COMMIT")
            return more
        except sqlite3.Error as error:
            log.warning("what was removed could not be cleared away: %r", error)
            _roll_back(connection)
            return False


class Team:
    """Threads that help others with work that does not need the interpreter, as far as they are idle."""

    def __init__(self, helpers: int) -> None:
        self._helpers = helpers
        self._pool = ThreadPoolExecutor(max(1, helpers), thread_name_prefix="treadle-index-team")

    def each(self, work: Callable[[A], None], pieces: Sequence[A]) -> None:
        """Does all pieces, in any order, and raises what one of them raises. The calling thread never waits for a
        helper that is busy with something else."""
        left = deque(pieces)

        def take() -> None:
            while left:
                try:
                    piece = left.popleft()
                except IndexError:
                    return
                work(piece)

        helpers = [self._pool.submit(take) for _ in range(min(self._helpers, len(pieces) // ENOUGH))]
        try:
            take()
        finally:
            left.clear()
            helping = [helper for helper in helpers if not helper.cancel()]
            wait(helping)
        for helper in helping:
            helper.result()

    def close(self) -> None:
        self._pool.shutdown()


def _run_group(connection: Connection, jobs: Sequence[_Job]) -> None:
    """Any fault of the transaction itself is the fault of every job."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        for job in jobs:
            _run_one(connection, job)
        connection.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001 -- it belongs to the callers, and the thread must go on
        for job in jobs:
            job.error = _failure(error)
        _roll_back(connection)


def _roll_back(connection: Connection) -> None:
    """A thread that ended over this would leave everyone waiting."""
    try:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        log.warning("a transaction of the index could not be rolled back: %r", error)


def _run_one(connection: Connection, job: _Job) -> None:
    connection.execute("SAVEPOINT one")
    try:
        (job.value,) = job.work(connection, [job.argument])
    except BaseException as error:
        # Some faults (disk full, out of memory) end the whole transaction: then the whole group has failed.
        if not connection.in_transaction:
            raise
        job.error = _failure(error)
        connection.execute("ROLLBACK TO one")
    connection.execute("RELEASE one")


def _fold_log(connection: Connection) -> bool:
    """Moves the log into the file and empties it; gives whether that worked. Searches and other processes may be in
    the way: then a later idle moment does it."""
    try:
        connection.execute("PRAGMA busy_timeout = 20")
        ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return not busy
    except sqlite3.Error as error:
        log.warning("the index's write-ahead log could not be folded: %r", error)
        return True
    finally:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}")
