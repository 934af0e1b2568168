"""The Postgres engine: statements, transactions that meet others, faults, lost connections, and what dead ones left."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest

from tests.postgres_kit import Cluster
from tests.unit.store.support import ALICE, BOB, NOW, conversation, message, row, texts, turn
from treadle.errors import ConversationLocked, InvalidRequest, PreviousNotFound, StorageFault
from treadle.ports import Checkpoint, FileRow
from treadle.store.conversations import SqlConversations
from treadle.store.db import Connection
from treadle.store.files import SqlFiles
from treadle.store.responses import SqlResponses, fail_interrupted

psycopg = pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")

from treadle.store import connect, postgres, postgres_link  # noqa: E402
from treadle.store.postgres import Postgres  # noqa: E402
from treadle.store.postgres_connection import translated  # noqa: E402


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Postgres]:
    database = Postgres(postgres_url)
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


class Meeting:
    """Lets pieces of work wait for each other in the middle, so that their transactions overlap for certain."""

    def __init__(self, parties: int) -> None:
        self._barrier = threading.Barrier(parties)
        self._met = threading.local()

    def __call__(self) -> None:
        """Waits in the first run only: a further one comes after the others have gone."""
        if not getattr(self._met, "yes", False):
            self._met.yes = True
            self._barrier.wait(10)


# ---------------------------------------------------------------------------------------------- statements


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", "SELECT 1"),
        ("a = ? AND b IN (?, ?)", "a = $1 AND b IN ($2, $3)"),
        ("a = '?' AND b = ? AND c = 'it''s ?'", "a = '?' AND b = $1 AND c = 'it''s ?'"),
        ("\"odd?\" = ? AND c LIKE '100%'", "\"odd?\" = $1 AND c LIKE '100%'"),
        ("", ""),
    ],
)
def test_placeholders_are_numbered_but_not_those_in_quotes(sql: str, expected: str) -> None:
    assert translated(sql) == expected.encode()


async def test_values_come_back_as_sqlite_gives_them(database: Postgres) -> None:
    sent: list[str | int | float | bytes | None] = ["naïve 😀 %s $1 '", 1 << 62, -1, 0, True, 2.5, b"\0\xff", None, ""]

    kinds = ["text", "bigint", "bigint", "smallint", "smallint", "float8", "bytea", "text", "text"]
    given = list(zip(sent, kinds, strict=True))

    def echo(connection: Connection) -> list[object]:
        return [connection.execute(f"SELECT CAST(? AS {kind})", (value,))[0][0] for value, kind in given]

    found = await database.read(echo)
    assert found == sent
    assert [type(value) for value in found] == [str, int, int, int, int, float, bytes, type(None), str]
    sums = await database.read(
        lambda c: c.execute("SELECT SUM(CAST(x AS bigint)), COUNT(*) FROM (VALUES (1), (2)) v (x)")
    )
    assert (sums, type(sums[0][0])) == ([(3, 2)], int)


async def test_text_with_the_character_nul_is_stored_without_it(database: Postgres) -> None:
    """Postgres has no such text; a name that holds it must not make the server fail."""
    files = SqlFiles(database, lambda: NOW)
    named = FileRow(id="file-1", filename="a\0b", purpose="x", bytes=1, created_at=NOW, media_type="text/plain")
    await files.add(ALICE, named)
    assert (await files.find(ALICE, ["file-1"]))["file-1"].filename == "a\ufffdb"
    page = await files.page(ALICE, after=None, limit=1, order="asc", purpose="\0")
    assert page.files == []
    odd = [message("one", name="msg_\0"), message("two", name="msg_2")]
    made = conversation()
    await SqlConversations(database).create(ALICE, made, odd)
    found = await SqlConversations(database).items(ALICE, made.id, after=None, limit=9, order="asc")
    assert found is not None
    assert [item.data for item in found.items] == [item.data for item in odd]


async def test_many_lengths_of_lists_are_more_statements_than_are_kept(database: Postgres) -> None:
    def ask(connection: Connection) -> int:
        return sum(
            len(connection.execute(f"SELECT 1 WHERE 1 IN ({', '.join('?' * length)})", [1] * length))
            for length in range(1, 301)
            for _ in range(6)
        )

    assert await database.read(ask) == 1800


# ---------------------------------------------------------------------------------------------- transactions


async def test_a_reading_sees_one_snapshot_and_cannot_write(database: Postgres) -> None:
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
    with pytest.raises(StorageFault):
        await database.read(add_thread)
    assert await database.read(owners) == ["x"]


async def test_work_that_raises_leaves_nothing_and_its_exception_arrives(database: Postgres) -> None:
    def fail(connection: Connection) -> None:
        add_thread(connection)
        raise InvalidRequest("no")

    for guarded in (False, True):
        with pytest.raises(InvalidRequest, match="no"):
            await database.write(fail, guarded=guarded)
    for call in (database.read, database.write):
        with pytest.raises(RuntimeError):
            await asyncio.wait_for(call(lambda c: next(iter(()))), 10)
    assert await database.read(owners) == []


async def test_work_that_hides_a_fault_of_the_database_is_not_taken_for_stored(database: Postgres) -> None:
    def hide(connection: Connection) -> None:
        add_thread(connection)
        try:
            connection.execute("SELECT 1 / 0")
        except psycopg.Error:
            return

    with pytest.raises(StorageFault):
        await database.write(hide)
    assert await database.read(owners) == []


async def test_what_two_have_read_and_changed_at_once_is_as_if_one_had_come_after_the_other(
    database: Postgres,
) -> None:
    """Each adds itself if it is alone: under mere snapshots both would find themselves alone."""
    meeting = Meeting(2)

    def add_if_alone(connection: Connection, owner: str) -> bool:
        alone = not owners(connection)
        meeting()
        if alone:
            add_thread(connection, owner)
        return alone

    added = await asyncio.gather(*(database.write(partial(add_if_alone, owner=name)) for name in "ab"))
    assert sorted(added) == [False, True]
    assert len(await database.read(owners)) == 1


async def test_transactions_that_wait_for_each_other_both_end_well(database: Postgres) -> None:
    await database.write(lambda c: (add_thread(c, "a"), add_thread(c, "b")))
    meeting = Meeting(2)

    def change(connection: Connection, first: str, second: str) -> None:
        connection.change("UPDATE threads SET tip = tip + 1 WHERE owner = ?", (first,))
        meeting()
        connection.change("UPDATE threads SET tip = tip + 1 WHERE owner = ?", (second,))

    changes = [partial(change, first="a", second="b"), partial(change, first="b", second="a")]
    await asyncio.gather(*(database.write(work, guarded=True) for work in changes))
    assert await database.read(lambda c: c.execute("SELECT tip FROM threads")) == [(2,), (2,)]


async def test_a_conflict_that_does_not_end_is_a_fault_in_bounded_time(
    database: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "CONFLICT_SECONDS", 0.2)
    runs: list[int] = []

    def never(connection: Connection) -> None:
        runs.append(1)
        connection.execute("DO $$ BEGIN RAISE EXCEPTION 'secret' USING ERRCODE = '40001'; END $$")

    with pytest.raises(StorageFault, match=r"^The database is busy\.$"):
        await asyncio.wait_for(database.write(never), 10)
    assert len(runs) > 3


@pytest.mark.parametrize("order", ["the turn first", "the deletion first"])
@pytest.mark.parametrize("branches", [False, True])
async def test_a_turn_and_the_deletion_of_what_it_continues_never_make_holes(
    database: Postgres, order: str, branches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at once, stopped before they commit: the turn is either whole, history included, or refused."""
    responses = SqlResponses(database)
    first = turn("q1", "a1")
    base = await responses.settle(ALICE, first)
    if branches:
        other = turn("other", "way", base=base, previous=first.row.id)
        await responses.settle(ALICE, other)  # takes the tip, which does not come back
        await responses.delete(ALICE, other.row.id)
    second = turn("q2", "a2", base=base, previous=first.row.id)
    meeting = Meeting(2)
    real = postgres_link._transaction

    def stopped(connection: object, work: Callable[[Connection], object], begin: bytes) -> object:
        def together(given: Connection) -> object:
            if begin == postgres_link.WRITING and order == "the deletion first":
                value = work(given)
                meeting()
                return value
            given.execute("SELECT 1 FROM threads")  # takes the snapshot
            meeting()
            return work(given)

        return real(connection, together, begin)  # type: ignore[arg-type]

    monkeypatch.setattr(postgres_link, "_transaction", stopped)
    settled, deleted = await asyncio.gather(
        responses.settle(ALICE, second), responses.delete(ALICE, first.row.id), return_exceptions=True
    )
    monkeypatch.setattr(postgres_link, "_transaction", real)
    assert deleted is True
    if isinstance(settled, Checkpoint):
        assert texts(await responses.history(ALICE, settled)) == ["q1", "a1", "q2", "a2"]
    else:
        assert isinstance(settled, PreviousNotFound)
        assert await responses.get(ALICE, second.row.id) is None


async def test_stored_turns_of_many_at_once_never_conflict(database: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """They only write, and rows of their own. Conflicts would be noticed as pauses."""

    def refuse(_seconds: float) -> None:
        raise AssertionError("a transaction had to run again")

    monkeypatch.setattr(postgres_link.time, "sleep", refuse)
    responses, conversations = SqlResponses(database), SqlConversations(database)

    async def chat(number: int) -> None:
        previous, base = None, None
        for n in range(4):
            wanted = turn(f"q{number}.{n}", "a", base=base, previous=previous)
            base, previous = await responses.settle(ALICE, wanted), wanted.row.id
        made = conversation()
        await conversations.create(ALICE, made, [message("x"), message("y")])
        await conversations.append(ALICE, made.id, [message("z")])

    await asyncio.gather(*(chat(number) for number in range(50)))
    page = await responses.page(ALICE, after=None, limit=1000, order="asc", model=None)
    assert len(page.responses) == 200


async def test_of_appends_at_once_by_several_processes_one_wins(postgres_url: str) -> None:
    opened = [Postgres(postgres_url, connections=4) for _ in range(2)]
    await asyncio.gather(*(database.start() for database in opened))
    stores = [SqlResponses(database) for database in opened]
    conversations = SqlConversations(opened[0])
    made = conversation()
    await conversations.create(ALICE, made, [])
    base = await conversations.checkpoint(ALICE, made.id)
    rivals = [turn(f"q{n}", f"a{n}", base=base, conversation=made.id, append=True) for n in range(20)]
    results = await asyncio.gather(
        *(stores[n % 2].settle(ALICE, rival) for n, rival in enumerate(rivals)), return_exceptions=True
    )
    assert [type(result) for result in results].count(ConversationLocked) == 19
    page = await conversations.items(ALICE, made.id, after=None, limit=100, order="asc")
    assert page is not None
    assert len(page.items) == 2
    await asyncio.gather(*(database.close() for database in opened))


# ---------------------------------------------------------------------------------------------- faults


async def test_faults_show_neither_sql_nor_data(database: Postgres) -> None:
    for call in (database.read, database.write):
        with pytest.raises(StorageFault) as caught:
            await call(lambda c: c.execute("SELECT secret FROM nowhere WHERE name = ?", ("hidden",)))
        assert caught.value.message == "The database failed (42P01)."
        assert isinstance(caught.value.__cause__, psycopg.Error)
        assert caught.value.status == 503


async def test_a_write_whose_waiter_was_cancelled_happens_whole(database: Postgres) -> None:
    wanted = turn("question", "answer")
    waiter = asyncio.ensure_future(SqlResponses(database).settle(ALICE, wanted))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await database.close()  # when all that was asked for is done
    again = Postgres(database._url)
    await again.start()
    assert await SqlResponses(again).get(ALICE, wanted.row.id) is not None
    await again.close()


async def test_what_was_asked_before_closing_is_done_and_what_comes_after_is_refused(postgres_url: str) -> None:
    database = Postgres(postgres_url, connections=2)
    with pytest.raises(StorageFault):
        database.write(add_thread)
    await database.start()
    asked = [asyncio.ensure_future(database.write(add_thread)) for _ in range(50)]
    await database.close()
    await asyncio.gather(*asked)
    for call in (database.read, database.write):
        with pytest.raises(StorageFault):
            call(add_thread)
    await database.close()


def kill_others(connection: Connection) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )


async def test_work_on_lost_connections_is_done_on_new_ones(postgres_url: str, database: Postgres) -> None:
    await asyncio.gather(*(database.write(add_thread) for _ in range(20)))
    other = Postgres(postgres_url, connections=1)
    await other.start()
    await other.read(kill_others)
    await other.close()
    await asyncio.gather(*(database.write(add_thread) for _ in range(20)))
    assert len(await database.read(owners)) == 40


async def test_work_that_loses_its_connection_in_the_middle_is_done_once(database: Postgres) -> None:
    runs: list[int] = []

    def suicide(connection: Connection) -> None:
        add_thread(connection)
        runs.append(1)
        if len(runs) == 1:
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    await database.write(suicide)
    assert (len(runs), await database.read(owners)) == (2, ["x"])


async def test_work_that_always_loses_its_connection_is_given_up(database: Postgres) -> None:
    runs: list[int] = []

    def suicide(connection: Connection) -> None:
        runs.append(1)
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(StorageFault):
        await database.write(suicide)
    assert len(runs) == 3
    await database.write(add_thread)


async def test_work_whose_connection_is_lost_while_it_commits_is_not_done_again(
    database: Postgres, cluster: Cluster
) -> None:
    """Whether it was stored is not known; doing it again might do it twice."""
    runs: list[int] = []

    def late(connection: Connection) -> None:
        add_thread(connection)
        connection.execute(
            "CREATE FUNCTION pg_temp.die() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$"
        )
        connection.execute("CREATE TEMP TABLE dying (x int)")
        connection.execute(
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON dying DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION pg_temp.die()"
        )
        connection.execute("INSERT INTO dying VALUES (1)")  # dies at COMMIT
        runs.append(1)

    with pytest.raises(StorageFault, match="not known"):
        await database.write(late)
    assert len(runs) == 1
    await database.write(add_thread)


async def test_a_database_that_is_away_gives_faults_at_once_and_then_serves_again(
    cluster: Cluster, postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link, "RECONNECT_SECONDS", 0.3)
    database = Postgres(cluster.url(postgres_database))
    await database.start()
    await asyncio.gather(*(database.write(add_thread) for _ in range(20)))
    cluster.run(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS false")
    cluster.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{postgres_database}'")
    began = time.monotonic()
    results = await asyncio.gather(*(database.read(owners) for _ in range(500)), return_exceptions=True)
    assert {str(result) for result in results} == {"The database cannot be reached."}
    assert time.monotonic() - began < 5, "not one time-out after the other"
    cluster.run(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS true")
    assert len(await database.read(owners)) == 20
    await database.close()


async def test_a_short_absence_is_waited_for(cluster: Cluster, postgres_database: str) -> None:
    database = Postgres(cluster.url(postgres_database))
    await database.start()
    cluster.run(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS false")
    cluster.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{postgres_database}'")
    waiting = asyncio.ensure_future(database.read(owners))
    await asyncio.sleep(0.2)
    cluster.run(f"ALTER DATABASE {postgres_database} ALLOW_CONNECTIONS true")
    assert await asyncio.wait_for(waiting, 10) == []
    await database.close()


def test_one_database_serves_several_event_loops(postgres_url: str) -> None:
    async def settle_some(database: Postgres) -> list[str]:
        turns = [turn("question", "answer") for _ in range(20)]
        await asyncio.gather(*(SqlResponses(database).settle(ALICE, wanted) for wanted in turns))
        return [wanted.row.id for wanted in turns]

    database = Postgres(postgres_url)
    asyncio.run(database.start())
    written: list[str] = []
    loops = [threading.Thread(target=lambda: written.extend(asyncio.run(settle_some(database)))) for _ in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(20)
    assert len(written) == 80
    asyncio.run(database.close())


# ---------------------------------------------------------------------------------------------- what dead ones left


async def test_only_what_has_an_expired_lease_is_marked_as_failed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the start and again and again: other processes are at work on what has a lease."""
    monkeypatch.setattr(postgres, "RECOVER_SECONDS", 0.05)
    database = connect.connect(postgres_url)
    await database.start()
    responses = SqlResponses(database)
    now = int(time.time())
    dead, alive = row(status="in_progress"), row(status="in_progress")
    await responses.begin(ALICE, dead, [message("q")], now - 1)
    await responses.begin(ALICE, alive, [message("q")], now + 1000)
    leases = "SELECT id, status, lease IS NULL FROM responses"
    deadline = time.monotonic() + 10
    while ("failed",) not in await database.read(lambda c: c.execute("SELECT status FROM responses")):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    found = await database.read(lambda c: c.execute(leases))
    assert sorted(found) == sorted([(dead.id, "failed", True), (alive.id, "in_progress", False)])
    late = turn("q", "a")
    late.row.id = dead.id
    with pytest.raises(StorageFault, match="settled already"):
        await responses.settle(ALICE, late)
    again = connect.connect(postgres_url)
    await again.start()
    kept = await SqlResponses(again).get(ALICE, alive.id)
    assert kept is not None
    assert kept.row.status == "in_progress"
    await again.close()
    await database.close()


async def test_a_deleted_response_of_a_dead_process_goes(database: Postgres) -> None:
    responses = SqlResponses(database)
    dead = row(status="in_progress")
    await responses.begin(BOB, dead, [message("q")], NOW)
    assert await responses.delete(BOB, dead.id)
    await database.write(partial(fail_interrupted, before=NOW))
    assert await database.read(lambda c: c.execute("SELECT COUNT(*) FROM responses")) == [(1,)]
    await database.write(partial(fail_interrupted, before=NOW + 1))
    assert await database.read(lambda c: c.execute("SELECT COUNT(*) FROM responses")) == [(0,)]
