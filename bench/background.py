"""What background responses cost the server beyond foreground ones, as CPU of its process.

`run.py` calls this; it also runs alone:

    python bench/background.py
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from figures import Figure
from load import Connection
from processes import Process, server, upstream

MODEL = "bench"
TOGETHER = 8
_LOOK_SECONDS = 0.1


async def _each(port: int, count: int, bodies: dict[str, Any], keep: list[bytes]) -> None:
    """`count` requests, some at a time; `keep` gets the answers."""
    left = iter(range(count))

    async def work() -> None:
        connection = Connection(port)
        for _ in left:
            status, answer = await connection.post("/v1/responses", bodies)
            if status != 200:
                raise RuntimeError(answer.decode())
            keep.append(answer)
        connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(TOGETHER):
            group.create_task(work())


async def _done(port: int, answers: list[bytes]) -> None:
    """Waits until all are completed, asking about few of them."""
    connection = Connection(port)
    for answer in reversed(answers):
        path = f"/v1/responses/{json.loads(answer)['id']}"
        while json.loads((await connection.get(path))[1])["status"] in ("queued", "in_progress"):
            await asyncio.sleep(_LOOK_SECONDS)
    connection.close()


async def overhead(served: Process, port: int, count: int, rounds: int) -> tuple[Figure, str]:
    """Milliseconds that a background response costs beyond the same in the foreground. Looking whether it is done is
    in it: one look each."""
    body = {"model": MODEL, "input": "!n=20 hello"}
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds + 2):
        background, answers = bool(number % 2), list[bytes]()
        before = served.cpu_ms()
        await _each(port, count, {**body, "background": background}, answers)
        if background:
            await _done(port, answers)
        if number > 1:  # the first of each warm it up
            found[background].append((served.cpu_ms() - before) / count)
    front, back = statistics.median(found[False]), statistics.median(found[True])
    note = f"{front:.2f} ms of CPU per stored response, {back:.2f} in the background, asked about once"
    return Figure("background response over foreground", back - front, 5.0, "ms"), note


async def polling(served: Process, port: int, count: int) -> Figure:
    """Milliseconds of CPU of one look at a response."""
    answers: list[bytes] = []
    await _each(port, 1, {"model": MODEL, "input": "!n=20 hello", "background": True}, answers)
    await _done(port, answers)
    connection, path = Connection(port), f"/v1/responses/{json.loads(answers[0])['id']}"
    for _ in range(50):
        await connection.get(path)
    before = served.cpu_ms()
    for _ in range(count):
        await connection.get(path)
    connection.close()
    return Figure("CPU per polling GET", (served.cpu_ms() - before) / count, 1.0, "ms")


async def event_log(served: Process, port: int, count: int, rounds: int, tokens: int = 1000) -> tuple[Figure, str]:
    """CPU per streamed token of a background response that is followed, against one in the foreground."""
    body = {"model": MODEL, "input": f"!n={tokens}", "stream": True}
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * rounds + 2):
        background, answers = bool(number % 2), list[bytes]()
        before = served.cpu_ms()
        await _each(port, count, {**body, "background": background}, answers)
        if any(b"response.completed" not in answer for answer in answers):
            raise RuntimeError("a stream was not whole")
        if number > 1:
            found[background].append((served.cpu_ms() - before) / count / tokens * 1000)
    front, back = statistics.median(found[False]), statistics.median(found[True])
    note = f"{front:.1f} us of CPU per token streamed in the foreground, {back:.1f} from the background"
    return Figure("background token / foreground token", back / front, 1.3, "x"), note


async def measure(served: Process, port: int, quick: bool) -> tuple[list[Figure], list[str]]:
    rounds = 1 if quick else 5
    over, first = await overhead(served, port, 90, rounds)
    streamed, second = await event_log(served, port, 16 if quick else 32, rounds)
    return [over, await polling(served, port, 200 if quick else 1000), streamed], [first, second]


async def main() -> None:
    with upstream() as (_, up_url), tempfile.TemporaryDirectory() as folder:
        with server(up_url, Path(folder)):
            pass
        with server(up_url, Path(folder)) as (served, port):
            started = time.perf_counter()
            figures, notes = await measure(served, port, "--quick" in sys.argv)
    for figure in figures:
        print(f"{figure.name:38} {figure.value:8.2f} {figure.unit:2}  budget {figure.budget:g}")
    print(*notes, f"{time.perf_counter() - started:.0f} s", sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
