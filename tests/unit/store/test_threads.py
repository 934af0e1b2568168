"""Branching and deletion against a reference in plain Python, and how deep and how large things may become."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.postgres_kit import Cluster
from tests.unit.store.support import ALICE, NOW, message, row, texts, turn
from treadle.ids import new_id
from treadle.ports import Checkpoint, SettledTurn, StoredItem
from treadle.scope import Principal, Scope
from treadle.store import threads
from treadle.store.connect import connect
from treadle.store.db import Connection, Database, Row, Value
from treadle.store.responses import SqlResponses
from treadle.store.sqlite import Sqlite

SOME = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shared(
    request: pytest.FixtureRequest, migrated: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """One database for all examples; each uses a tenant of its own."""
    if request.param == "sqlite":
        database = connect(str(shutil.copy(migrated, tmp_path_factory.mktemp("shared") / "treadle.db")))
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        database = connect(cluster.url(cluster.fresh()))
    asyncio.run(database.start())
    yield database
    asyncio.run(database.close())


class Node(NamedTuple):
    """A settled turn of the reference: its own items and, through its parent, all before them."""

    id: str
    end: Checkpoint
    items: list[str]
    parent: Node | None

    def history(self) -> list[str]:
        return (self.parent.history() if self.parent else []) + self.items


def sized_turn(parent: Node | None, inputs: int, outputs: int) -> SettledTurn:
    return SettledTurn(
        row=row(previous=parent.id if parent else None),
        inputs=[message(f"i{new_id('t')}") for _ in range(inputs)],
        outputs=[message(f"o{new_id('t')}") for _ in range(outputs)],
        base=parent.end if parent else None,
    )


async def grow(responses: SqlResponses, scope: Scope, nodes: list[Node], step: tuple[int, int, int]) -> Node:
    """Adds a turn after the chosen node, or a new thread where the choice falls on none."""
    choice, inputs, outputs = step
    parent = ([None, *nodes])[choice % (len(nodes) + 1)]
    wanted = sized_turn(parent, inputs, outputs)
    end = await responses.settle(scope, wanted)
    return Node(wanted.row.id, end, texts([*wanted.inputs, *wanted.outputs]), parent)


def in_its_own_tenant(shared: Database, check: Callable[[SqlResponses, Scope], Awaitable[None]]) -> None:
    async def run() -> None:
        await check(SqlResponses(shared), Scope(new_id("tenant"), Principal("someone")))

    asyncio.run(run())


steps = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 3), st.integers(0, 3)), max_size=25)


@SOME
@given(steps=steps)
def test_every_turn_of_any_tree_has_the_history_of_its_path(
    shared: Database, steps: list[tuple[int, int, int]]
) -> None:
    async def check(responses: SqlResponses, scope: Scope) -> None:
        nodes: list[Node] = []
        for step in steps:
            nodes.append(await grow(responses, scope, nodes, step))
        for node in nodes:
            assert texts(await responses.history(scope, node.end)) == node.history()
            found = await responses.get(scope, node.id)
            assert found is not None
            assert texts(found.inputs) + texts(found.outputs) == node.items

    in_its_own_tenant(shared, check)


growth = st.tuples(st.just("grow"), st.integers(0, 1000), st.integers(0, 2), st.integers(0, 2))
deletion = st.tuples(st.just("delete"), st.integers(0, 1000), st.just(0), st.just(0))


@SOME
@given(acts=st.lists(st.one_of(growth, growth, growth, deletion), min_size=5, max_size=25), order=st.randoms())
def test_after_any_deletions_exactly_what_live_responses_need_is_kept(
    shared: Database, acts: list[tuple[str, int, int, int]], order: random.Random
) -> None:
    async def check(responses: SqlResponses, scope: Scope) -> None:
        live: list[Node] = []
        for act, *step in acts:
            if act == "grow":
                live.append(await grow(responses, scope, live, (step[0], step[1], step[2])))
            elif live:
                await delete(responses, scope, live, step[0] % len(live))
        while live:
            for node in live:
                assert texts(await responses.history(scope, node.end)) == node.history()
            await delete(responses, scope, live, order.randrange(len(live)))
        left = await shared.read(lambda c: c.execute("SELECT key FROM threads WHERE tenant = ?", (scope.tenant,)))
        assert left == []

    async def delete(responses: SqlResponses, scope: Scope, live: list[Node], choice: int) -> None:
        assert await responses.delete(scope, live.pop(choice).id)
        assert await everything(shared, scope) == {text for node in live for text in node.history()}

    in_its_own_tenant(shared, check)


async def test_branches_of_branches_keep_what_they_inherit_until_the_last_is_deleted(
    responses: SqlResponses, database: Database
) -> None:
    a = await grow(responses, ALICE, [], (0, 1, 1))
    b = await grow(responses, ALICE, [a], (1, 1, 1))
    c = await grow(responses, ALICE, [a], (1, 1, 1))  # branches from a
    d = await grow(responses, ALICE, [c], (1, 1, 1))
    e = await grow(responses, ALICE, [c], (1, 1, 1))  # branches from c
    assert len({node.end.thread for node in (a, b, c, d, e)}) == 3
    for gone, live in ((a, [b, d, e]), (c, [b, d, e]), (b, [d, e]), (d, [e])):
        assert await responses.delete(ALICE, gone.id)
        for node in live:
            assert texts(await responses.history(ALICE, node.end)) == node.history()
        assert await everything(database, ALICE) == {text for node in live for text in node.history()}
    assert await responses.delete(ALICE, e.id)
    assert await everything(database, ALICE) == set()


async def everything(database: Database, scope: Scope) -> set[str]:
    """The texts of all items that are stored for a tenant."""
    rows = await database.read(
        lambda c: c.execute(
            "SELECT i.id, i.kind, i.data FROM items i JOIN threads t ON t.key = i.thread WHERE t.tenant = ?",
            (scope.tenant,),
        )
    )
    return set(texts([StoredItem(*row) for row in rows]))


async def test_a_path_of_a_thousand_branchings_is_read_in_order(responses: SqlResponses) -> None:
    expected: list[str] = []
    base, previous = None, None
    for n in range(1001):
        wanted = turn(f"q{n}", f"a{n}", base=base, previous=previous)
        rival = turn("other", "way", base=base, previous=previous)
        if base is not None:
            await responses.settle(ALICE, rival)  # takes the tip, so that the next one must branch
        base, previous = await responses.settle(ALICE, wanted), wanted.row.id
        expected += [f"q{n}", f"a{n}"]
    assert base is not None
    assert texts(await responses.history(ALICE, base)) == expected


async def test_reading_a_path_of_branchings_takes_one_statement_for_its_items(
    responses: SqlResponses, database: Database
) -> None:
    base, previous = None, None
    for n in range(20):
        if base is not None:
            await responses.settle(ALICE, turn("other", "way", base=base, previous=previous))
        wanted = turn(f"q{n}", f"a{n}", base=base, previous=previous)
        base, previous = await responses.settle(ALICE, wanted), wanted.row.id
    assert base is not None
    end = base

    def counted(connection: Connection) -> tuple[int, list[str]]:
        recording = Recording(connection)
        return len(threads.history(recording, ALICE, end)), recording.statements

    items, statements = await database.read(counted)
    assert items == 40
    assert ["items" in statement for statement in statements] == [False, True]


@pytest.mark.parametrize(
    ("segments", "base", "end", "expected"),
    [
        ([], 0, Checkpoint(1, 4), [(1, 0, 4)]),
        ([], 0, Checkpoint(1, 0), []),
        ([(1, 0, 4)], 4, Checkpoint(2, 6), [(1, 0, 4), (2, 4, 6)]),
        ([(1, 0, 4)], 4, Checkpoint(2, 4), [(1, 0, 4)]),
        ([(1, 0, 4), (2, 4, 9)], 9, Checkpoint(3, 6), [(1, 0, 4), (2, 4, 6)]),
        ([(1, 0, 4), (2, 4, 9)], 9, Checkpoint(3, 2), [(1, 0, 2)]),
    ],
)
def test_a_path_is_cut_at_its_end(
    segments: list[tuple[int, int, int]], base: int, end: Checkpoint, expected: list[tuple[int, int, int]]
) -> None:
    assert threads.path(segments, base, end) == expected


class Recording:
    """A connection that keeps the statements it passes on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.statements: list[str] = []

    def execute(self, sql: str, params: Sequence[Value] = ()) -> list[Row]:
        self.statements.append(sql)
        return self._connection.execute(sql, params)

    def change(self, sql: str, params: Sequence[Value] = ()) -> int:
        self.statements.append(sql)
        return self._connection.change(sql, params)

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None:
        self.statements.append(sql)
        self._connection.executemany(sql, rows)


def text_of(characters: int, n: int) -> str:
    words = (f"{n}{word}" for word in itertools.cycle(("the ", "quick ", "brown ", "fox ")))
    return "".join(itertools.islice(words, characters))[:characters]


@pytest.mark.parametrize(("asked", "answered"), [(1000, 1400), (1200, 1200), (200, 2200)])
async def test_a_chat_takes_less_than_twice_its_text_on_disk(
    migrated: Path, tmp_path: Path, asked: int, answered: int
) -> None:
    """60 turns, 144 KB of text; what an empty database takes does not count, since it grows with every table."""
    file = Path(shutil.copy(migrated, tmp_path / "chat.db"))
    database = Sqlite(file)
    await database.start()
    responses = SqlResponses(database)
    base, previous = None, None
    for n in range(60):
        wanted = SettledTurn(
            row=row(previous=previous, created_at=NOW + n, completed_at=NOW + n, model="scripted-model"),
            inputs=[message(text_of(asked, n))],
            outputs=[message(text_of(answered, n), role="assistant")],
            base=base,
        )
        wanted.row.data = b'{"instructions":"%s"}' % (b"i" * 330)
        base, previous = await responses.settle(ALICE, wanted), wanted.row.id
    await database.close()
    assert file.stat().st_size - migrated.stat().st_size < 1.75 * 60 * (asked + answered)
