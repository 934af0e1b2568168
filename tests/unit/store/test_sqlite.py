"""The SQLite engine: transactions, groups, faults, threads and loops."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.store.support import ALICE, eventually, turn
from treadle.errors import InvalidRequest, StorageFault
from treadle.store import workers
from treadle.store.db import Connection
from treadle.store.responses import SqlResponses
from treadle.store.sqlite import PAGE_BYTES, Sqlite


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Sqlite]:
    database = Sqlite(path)
    await database.start()
    yield database
    await database.close()


def add_thread(connection: Connection, owner: str = "x") -> None:
    connection.execute(
        "INSERT INTO threads (tenant, owner, base, tip, created_at, segments, metadata)"
        " VALUES ('t', ?, 0, 0, 0, '[]', '')",
        (owner,),
    )


def owners(connection: Connection) -> list[str]:
    return [owner for (owner,) in connection.execute("SELECT owner FROM threads ORDER BY owner")]


class Gate:
    """A write that holds the writer until `open` is called, so that what follows gathers into one group."""

    def __init__(self) -> None:
        self._entered, self._open = threading.Event(), threading.Event()

    def __call__(self, _connection: Connection) -> None:
        self._entered.set()
        assert self._open.wait(10)

    async def entered(self) -> None:
        assert await asyncio.to_thread(self._entered.wait, 10)

    def open(self) -> None:
        self._open.set()


async def test_a_write_that_returned_is_in_the_file(database: Sqlite, path: Path) -> None:
    await database.write(add_thread)
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT count(*) FROM threads").fetchone() == (1,)
    other.close()


async def test_a_failing_piece_of_a_group_rolls_back_alone(database: Sqlite) -> None:
    def fail(connection: Connection) -> None:
        add_thread(connection, "bad")
        raise InvalidRequest("no")

    gate = Gate()
    first = asyncio.ensure_future(database.write(gate))
    await gate.entered()
    waiting = [
        asyncio.ensure_future(database.write(lambda c: add_thread(c, "before"))),
        asyncio.ensure_future(database.write(fail)),
        asyncio.ensure_future(database.write(lambda c: add_thread(c, "after"))),
    ]
    gate.open()
    results = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["NoneType", "NoneType", "InvalidRequest", "NoneType"]
    assert await database.read(owners) == ["after", "before"]


async def test_a_fault_in_the_commit_is_the_fault_of_the_whole_group(database: Sqlite) -> None:
    def deferred(connection: Connection) -> None:
        connection.execute("CREATE TABLE late (thread INTEGER REFERENCES threads (key) DEFERRABLE INITIALLY DEFERRED)")

    await database.write(deferred)
    gate = Gate()
    first = asyncio.ensure_future(database.write(gate))
    await gate.entered()
    waiting = [
        asyncio.ensure_future(database.write(add_thread)),
        asyncio.ensure_future(database.write(lambda c: c.execute("INSERT INTO late VALUES (99)"))),  # fails at COMMIT
        asyncio.ensure_future(database.write(add_thread)),
    ]
    gate.open()
    results = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["NoneType", *["StorageFault"] * 3]
    assert await database.read(owners) == []
    await database.write(add_thread)  # and the writer goes on
    assert await database.read(owners) == ["x"]


async def test_a_fault_that_ends_the_transaction_is_the_fault_of_the_whole_group(database: Sqlite) -> None:
    def give_up(connection: Connection) -> None:
        connection.execute("ROLLBACK")  # what SQLite does by itself when the disk is full
        raise sqlite3.OperationalError("database or disk is full")

    gate = Gate()
    first = asyncio.ensure_future(database.write(gate))
    await gate.entered()
    waiting = [asyncio.ensure_future(database.write(work)) for work in (add_thread, give_up, add_thread)]
    gate.open()
    results = await asyncio.gather(first, *waiting, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["NoneType", *["StorageFault"] * 3]
    assert await database.read(owners) == []


async def test_a_full_disk_is_a_storage_fault_and_nothing_is_stored(database: Sqlite) -> None:
    def limit(connection: Connection) -> None:
        ((pages,),) = connection.execute("PRAGMA page_count")
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")

    store = SqlResponses(database)
    await database.write(limit)
    with pytest.raises(StorageFault) as caught:
        await store.settle(ALICE, turn("x" * 100_000, "y"))
    assert caught.value.message == "The database's disk is full."
    assert isinstance(caught.value.__cause__, sqlite3.Error)
    assert await database.read(owners) == []
    await store.settle(ALICE, turn("short", "y"))


async def test_faults_show_neither_sql_nor_data(database: Sqlite) -> None:
    for call in (database.read, database.write):
        with pytest.raises(StorageFault) as caught:
            await call(lambda c: c.execute("SELECT secret FROM nowhere WHERE name = ?", ("hidden",)))
        assert isinstance(caught.value.__cause__, sqlite3.Error)
        assert not {"secret", "nowhere", "hidden"} & set(caught.value.message.split())
        assert caught.value.status == 503


async def test_a_write_whose_waiter_was_cancelled_happens_whole(database: Sqlite) -> None:
    store, gate = SqlResponses(database), Gate()
    first = asyncio.ensure_future(database.write(gate))
    await gate.entered()
    wanted = turn("question", "answer")
    waiter = asyncio.ensure_future(store.settle(ALICE, wanted))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    gate.open()
    await first
    await database.write(lambda c: None)
    found = await store.get(ALICE, wanted.row.id)
    assert found is not None
    assert (found.inputs, found.outputs) == (wanted.inputs, wanted.outputs)


async def test_a_reading_sees_one_snapshot(database: Sqlite) -> None:
    looked, written = threading.Event(), threading.Event()

    def look_twice(connection: Connection) -> tuple[list[str], list[str]]:
        before = owners(connection)
        looked.set()
        assert written.wait(10)
        return before, owners(connection)

    reading = asyncio.ensure_future(database.read(look_twice))
    assert await asyncio.to_thread(looked.wait, 10)
    await database.write(add_thread)
    written.set()
    assert await reading == ([], [])
    assert await database.read(owners) == ["x"]


async def test_a_reading_cannot_write(database: Sqlite) -> None:
    with pytest.raises(StorageFault):
        await database.read(add_thread)
    assert await database.read(owners) == []


async def test_work_that_raises_stop_iteration_does_not_hang_its_waiter(database: Sqlite) -> None:
    for call in (database.read, database.write):
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(call(lambda c: next(iter(()))), 10)


def test_one_database_serves_several_event_loops(path: Path) -> None:
    async def settle_some(database: Sqlite) -> list[str]:
        turns = [turn("question", "answer") for _ in range(20)]
        await asyncio.gather(*(SqlResponses(database).settle(ALICE, wanted) for wanted in turns))
        return [wanted.row.id for wanted in turns]

    database = Sqlite(path)
    asyncio.run(database.start())
    written: list[str] = []
    threads = [
        threading.Thread(target=lambda: written.extend(asyncio.run(settle_some(database))), daemon=True)
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    async def all_there() -> list[bool]:
        return [await SqlResponses(database).get(ALICE, name) is not None for name in written]

    assert asyncio.run(all_there()) == [True] * 80
    asyncio.run(database.close())


async def test_what_was_asked_before_closing_is_done_and_what_comes_after_is_refused(path: Path) -> None:
    database = Sqlite(path)
    with pytest.raises(StorageFault):
        database.write(add_thread)
    await database.start()
    asked = [asyncio.ensure_future(database.write(add_thread)) for _ in range(300)]
    await database.close()
    await asyncio.gather(*asked)
    for call in (database.read, database.write):
        with pytest.raises(StorageFault):
            call(add_thread)
    await database.close()
    again = Sqlite(path)
    await again.start()
    assert len(await again.read(owners)) == 300
    await again.close()


async def test_callers_beyond_the_bound_are_refused_at_once(database: Sqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "WAITING", 2)
    gate = Gate()
    first = asyncio.ensure_future(database.write(gate))
    await gate.entered()
    waiting = [asyncio.ensure_future(database.write(add_thread)) for _ in range(2)]
    with pytest.raises(StorageFault):
        database.write(add_thread)
    gate.open()
    await asyncio.gather(first, *waiting)


async def test_an_idle_writer_folds_the_log_into_the_file(database: Sqlite, path: Path) -> None:
    log = path.with_name(path.name + "-wal")
    await database.write(add_thread)
    assert log.stat().st_size > 0
    await eventually(lambda: log.stat().st_size == 0)
    assert await database.read(owners) == ["x"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX modes")
async def test_only_the_owner_can_read_the_file_and_its_log(tmp_path: Path) -> None:
    database = Sqlite(tmp_path / "new" / "folder" / "treadle.db")
    await database.start()
    await database.write(add_thread)
    for file in (tmp_path / "new" / "folder").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert await database.read(lambda c: c.execute("PRAGMA page_size")) == [(PAGE_BYTES,)]
    await database.close()


async def test_every_commit_is_synced(database: Sqlite) -> None:
    settings = await database.write(
        lambda c: [c.execute(f"PRAGMA {name}")[0][0] for name in ("synchronous", "journal_mode", "foreign_keys")]
    )
    assert settings == [2, "wal", 1]


@pytest.mark.parametrize("databases", [1, 2])
async def test_thirty_writers_with_readers_never_find_the_database_locked(path: Path, databases: int) -> None:
    opened = [Sqlite(path) for _ in range(databases)]
    for database in opened:
        await database.start()
    stores = [SqlResponses(database) for database in opened]

    async def write(n: int) -> list[str]:
        store, base, ids = stores[n % databases], None, list[str]()
        for _ in range(10):
            wanted = turn("question", "answer", base=base, previous=ids[-1] if ids else None)
            base = await store.settle(ALICE, wanted)
            ids.append(wanted.row.id)
        return ids

    async def read(n: int) -> None:
        for _ in range(20):
            await stores[n % databases].page(ALICE, after=None, limit=20, order="desc", model=None)

    written = await asyncio.gather(*(write(n) for n in range(30)), *(read(n) for n in range(10)))
    for ids in written[:30]:
        found = await stores[0].checkpoint(ALICE, (ids or [""])[-1])
        assert found is not None
        assert len(await stores[-1].history(ALICE, found[1])) == 20
    for database in opened:
        await database.close()
