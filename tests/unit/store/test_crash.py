"""A process killed at any moment leaves every turn that it reported stored whole, and no turn in part."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tests.unit.store.support import ALICE
from treadle.ports import ResponsePage
from treadle.store.connect import connect
from treadle.store.db import Connection, Row
from treadle.store.responses import SqlResponses
from treadle.store.sqlite import Sqlite

WRITERS = 16

PROGRAM = """
import asyncio, sys

from tests.unit.store.support import ALICE, message, row
from treadle.ports import SettledTurn
from treadle.store.connect import connect
from treadle.store.responses import SqlResponses

async def write(responses, writer):
    base, previous = None, None
    for n in range(100_000):
        inputs, outputs = 1 + (n + writer) % 3, 1 + n % 4
        turn = SettledTurn(
            row=row(previous=previous, data=b'{"inputs":%d,"outputs":%d}' % (inputs, outputs)),
            inputs=[message("x" * (100 + 700 * (n % 5))) for _ in range(inputs)],
            outputs=[message("y" * (100 + 500 * (n % 7))) for _ in range(outputs)],
            base=base,
        )
        end = await responses.settle(ALICE, turn)
        print(turn.row.id, flush=True)
        if n % 5:
            base, previous = end, turn.row.id

async def main():
    database = connect(sys.argv[1])
    await database.start()
    await asyncio.gather(*(write(SqlResponses(database), n) for n in range(int(sys.argv[2]))))

asyncio.run(main())
"""


def killed_after(url: str, lines: int) -> list[str]:
    """Runs the program until it has reported `lines` turns, kills it, and gives all that it reported."""
    code = f"import sys; sys.path[:] = {sys.path!r}\n{PROGRAM}"
    process = subprocess.Popen([sys.executable, "-c", code, url, str(WRITERS)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        reported = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        reported += process.stdout.readlines()
    assert len(reported) >= lines, "it ended by itself"
    return [line.decode().strip() for line in reported if line.endswith(b"\n")]


def counted(connection: Connection) -> tuple[list[Row], list[Row]]:
    items = connection.execute("SELECT count(*) FROM items")
    return items, connection.execute("SELECT SUM(end_pos - start_pos) FROM responses")


@pytest.mark.parametrize("run", range(3))
async def test_whatever_was_reported_is_there_whole_and_nothing_is_there_in_part(url: str, run: int) -> None:
    reported = killed_after(url, random.randrange(1, 600))
    database = connect(url)
    await database.start()
    responses = SqlResponses(database)
    stored: dict[str, tuple[bytes, int]] = {}
    page, after = ResponsePage([], has_more=True), None
    while page.has_more:
        page = await responses.page(ALICE, after=after, limit=100, order="asc", model=None)
        for found in page.responses:
            after = found.row.id
            counts = b'{"inputs":%d,"outputs":%d}' % (len(found.inputs), len(found.outputs))
            assert counts == found.row.data, f"run {run}: a turn in part"
            point = await responses.checkpoint(ALICE, after)
            assert point is not None
            stored[after] = found.row.data, len(await responses.history(ALICE, point[1]))
    assert set(reported) <= set(stored)
    assert len(stored) - len(set(reported)) <= WRITERS  # at most one unreported turn per writer
    items, spans = await database.read(counted)
    assert items == spans
    if isinstance(database, Sqlite):
        assert await database.read(lambda c: c.execute("PRAGMA integrity_check")) == [("ok",)]
    await database.close()
