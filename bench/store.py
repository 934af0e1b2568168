"""What the store costs: CPU per settled turn and per read, and bytes on disk per byte of text.

    python bench/store.py [--turns 3000] [--callers 16] [--url postgresql://…]

Without a url it is a SQLite file, and what it takes on disk is measured too.

CPU is that of the whole process, callers and event loop included. Chains are 60 turns long, as chats are.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path

from treadle.ids import new_id
from treadle.ports import Checkpoint, ResponseRow, SettledTurn, StoredItem
from treadle.scope import LOCAL
from treadle.store.connect import connect
from treadle.store.responses import SqlResponses

CHAIN = 60


def item(prefix: str, kind: str, characters: int) -> StoredItem:
    name = new_id(prefix)
    text = b"x" * characters
    head = b'{"id":"%s","type":"message","role":"%s","status":"completed",' % (name.encode(), kind.encode())
    return StoredItem(name, "message", head + b'"content":[{"type":"output_text","text":"%s"}]}' % text)


def turn(base: Checkpoint | None, previous: str | None) -> SettledTurn:
    row = ResponseRow(
        id=new_id("resp"), status="completed", model="scripted", created_at=int(time.time()), previous=previous
    )
    row.data = b'{"metadata":"%s"}' % (b"m" * 330)
    return SettledTurn(row=row, inputs=[item("msg", "user", 1000)], outputs=[item("msg", "assistant", 1400)], base=base)


async def chain(store: SqlResponses, turns: int) -> Checkpoint | None:
    base: Checkpoint | None = None
    previous: str | None = None
    for n in range(turns):
        if n % CHAIN == 0:
            base, previous = None, None
        next_turn = turn(base, previous)
        base, previous = await store.settle(LOCAL, next_turn), next_turn.row.id
    return base


async def measure(name: str, work: Sequence[Coroutine[object, object, object]], calls: int) -> None:
    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*work)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(f"{name:28} {cpu / calls * 1e6:7.0f} µs CPU  {calls / wall:7.0f} /s")


async def main(url: str, turns: int, callers: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.db"
        database = connect(url or str(path))
        start = time.perf_counter()
        await database.start()
        print(f"first start (migrates)       {(time.perf_counter() - start) * 1e3:7.0f} ms")
        end = await chain(SqlResponses(database), CHAIN)
        assert end is not None
        await database.close()
        if not url:
            print(f"bytes per byte of text       {path.stat().st_size / (CHAIN * 2400):7.2f}")
        start = time.perf_counter()
        database = connect(url or str(path))
        await database.start()
        print(f"later start                  {(time.perf_counter() - start) * 1e3:7.1f} ms")
        store = SqlResponses(database)
        each = turns // callers
        started = time.process_time()
        for _ in range(turns):
            turn(None, None)
        print(f"building the turns           {(time.process_time() - started) / turns * 1e6:7.0f} µs CPU")
        await measure("settle, 1 caller", [chain(store, each)], each)
        await measure(f"settle, {callers} callers", [chain(store, each) for _ in range(callers)], each * callers)

        async def histories() -> None:
            for _ in range(each):
                await store.history(LOCAL, end)

        await measure("history of 120, 1 caller", [histories()], each)
        await measure(f"history of 120, {callers} callers", [histories() for _ in range(callers)], each * callers)
        some = await store.page(LOCAL, after=None, limit=1, order="desc", model=None)
        response = some.responses[0].row.id

        async def gets() -> None:
            for _ in range(each):
                await store.get(LOCAL, response)

        await measure("get, 1 caller", [gets()], each)
        await measure(f"get, {callers} callers", [gets() for _ in range(callers)], each * callers)
        await database.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3200)
    parser.add_argument("--callers", type=int, default=16)
    parser.add_argument("--url", default="", help="the address of a Postgres")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.turns, arguments.callers))
