"""The port to a SQL database, and which schema revisions this code knows.

Statements use `?` placeholders and only SQL that SQLite (3.35 or newer) and Postgres share: `ON CONFLICT` and
`RETURNING` are fine; dialect words belong to the engine's own file.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Value = str | int | float | bytes | None

# Drivers type columns at run time only. The function that wrote a query turns its rows into structs at once, so
# this is the one place where `Any` stands for "as the schema says".
Row = tuple[Any, ...]

REVISIONS = ("0001", "0002", "0003", "0004", "0005")
"""All schema revisions, oldest first. Kept here so that starting on a current database imports no migration tool."""

HEAD = REVISIONS[-1]


class Connection(Protocol):
    """What a piece of work may do with the database."""

    def execute(self, sql: str, params: Sequence[Value] = ()) -> list[Row]:
        """Runs one statement and fetches all that it returns."""
        ...

    def change(self, sql: str, params: Sequence[Value] = ()) -> int:
        """Runs one statement that returns nothing; gives the number of rows it changed."""
        ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        """Runs one statement once per row of parameters."""
        ...

    def guard(self, table: str, column: str, where: str, params: Sequence[Value] = ()) -> bool:
        """Whether such a row is there; one that is conflicts with whoever changes or deletes it meanwhile, as if
        `column` were written with the value that it has. For work that writes `guarded`."""
        ...


class Database(Protocol):
    """Runs pieces of work, each a synchronous function of a Connection.

    Faults of the database surface as StorageFault; whatever the work itself raises reaches the caller unchanged.
    Work must have no effect but its statements: an engine may run it again after a conflict between transactions.
    """

    async def start(self) -> None:
        """Opens the database and brings its schema to HEAD. StorageFault when either fails."""
        ...

    async def close(self) -> None:
        """Finishes what was asked for, then lets go. Later calls raise StorageFault."""
        ...

    def read(self, work: Callable[[Connection], T]) -> Awaitable[T]:
        """Runs `work` on one snapshot; it must not write. Cancelling the waiter drops the result only."""
        ...

    def write(self, work: Callable[[Connection], T], *, guarded: bool = False) -> Awaitable[T]:
        """Runs `work` as one serialisable transaction. When the awaitable gives a result, it is durable; when it
        raises, nothing of it is there. Cancelling the waiter does not stop the write: it happens whole or fails whole.

        An engine may have to watch everything that is read, and Postgres watches pages of indexes, so that those who
        only work on neighbouring rows hold up each other. `guarded` spares that. It is a promise of the work: whatever
        it has read and relies on cannot change unless a row changes that it writes or guards as well.
        """
        ...
