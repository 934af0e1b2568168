"""What a turn over WebSocket costs the server, against the same turn as server-sent events, as CPU of its process.

`run.py` calls this; it also runs alone:

    python bench/websocket.py
"""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from figures import Figure
from load import Connection
from processes import Process, server, upstream

MODEL = "bench"
WORDS = "word " * 200
_KEY = b"\0\0\0\0"
"""Masks nothing, which is legal and costs a benchmark least."""


class Socket:
    """A bare client: cheap enough to leave the cores to what is measured."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Socket:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        self._writer.write(
            b"GET /v1/responses HTTP/1.1\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head:
            raise RuntimeError(head.decode())
        return self

    async def turn(self, body: dict[str, Any]) -> dict[str, Any]:
        """The response of the last event."""
        data = json.dumps({"type": "response.create", **body}).encode()
        size = len(data)
        head = struct.pack("!BBQ", 0x81, 0x80 | 127, size) if size > 65535 else struct.pack("!BBH", 0x81, 254, size)
        self._writer.write((head if size > 125 else bytes((0x81, 0x80 | size))) + _KEY + data)
        while True:
            _, size = await self._reader.readexactly(2)
            if size == 126:
                size = int.from_bytes(await self._reader.readexactly(2), "big")
            elif size == 127:
                size = int.from_bytes(await self._reader.readexactly(8), "big")
            event = await self._reader.readexactly(size)
            if event.startswith((b'{"type":"response.completed"', b'{"type":"error"')):
                found: dict[str, Any] = json.loads(event)
                if "response" not in found:
                    raise RuntimeError(event.decode())
                return dict(found["response"])

    def close(self) -> None:
        self._writer.close()


async def _sse(port: int) -> tuple[Callable[[dict[str, Any]], Awaitable[Any]], Callable[[], None]]:
    connection = Connection(port)

    async def turn(body: dict[str, Any]) -> None:
        status, answer = await connection.post("/v1/responses", {**body, "stream": True})
        if status != 200 or b"response.completed" not in answer:
            raise RuntimeError(answer.decode())

    return turn, connection.close


async def _socket(port: int) -> tuple[Callable[[dict[str, Any]], Awaitable[Any]], Callable[[], None]]:
    socket = await Socket(port).open()
    return socket.turn, socket.close


async def costs(served: Process, port: int, body: dict[str, Any], count: int, together: int) -> dict[str, float]:
    """Milliseconds of CPU per turn, by transport, taken in turns."""
    found: dict[str, list[float]] = {"sse": [], "websocket": []}
    for name, connect in (("sse", _sse), ("websocket", _socket)) * 4:
        turns = [await connect(port) for _ in range(together)]

        async def work(turn: Callable[[dict[str, Any]], Awaitable[Any]], part: int) -> None:
            for _ in range(part):
                await turn(body)

        async with asyncio.TaskGroup() as group:  # once, so that everything is warm
            for turn, _ in turns:
                group.create_task(work(turn, 1))
        before = served.cpu_ms()
        async with asyncio.TaskGroup() as group:
            for turn, _ in turns:
                group.create_task(work(turn, count // together))
        found[name].append((served.cpu_ms() - before) / (count // together * together))
        for _, close in turns:
            close()
    return {name: statistics.median(values) for name, values in found.items()}


async def chain(served: Process, port: int, turns: int = 50) -> list[float]:
    """Milliseconds of CPU of each turn of an unstored chain on one socket."""
    socket, previous, found = await Socket(port).open(), None, list[float]()
    for _ in range(turns):
        before = served.cpu_ms()
        body = {"model": MODEL, "input": "!n=200 " + WORDS, "store": False, "previous_response_id": previous}
        previous = (await socket.turn(body))["id"]
        await asyncio.sleep(0.005)  # what follows the last event belongs to the turn
        found.append(served.cpu_ms() - before)
    socket.close()
    return found


async def measure(served: Process, port: int, quick: bool) -> tuple[list[Figure], list[str]]:
    notes, figures = [], []
    for tokens, together, count in ((1, 16, 160), (20, 16, 160), (500, 16, 64)):
        body = {"model": MODEL, "input": f"!n={tokens}", "store": False}
        found = await costs(served, port, body, count // 2 if quick else count * 2, together)
        ratio = found["websocket"] / found["sse"]
        figures.append(Figure(f"WebSocket turn of {tokens} tokens / over SSE", ratio, 1.1, "x"))
        notes.append(
            f"{tokens} tokens, {together} at once: {found['websocket']:.2f} ms of CPU per turn over WebSocket, "
            f"{found['sse']:.2f} as server-sent events"
        )
    growth = []
    for _ in range(1 if quick else 5):
        taken = await chain(served, port)
        growth.append(sum(taken[-8:]) / sum(taken[:8]))
    notes.append(f"unstored chain on a socket: ratios {', '.join(f'{ratio:.2f}' for ratio in growth)}")
    figures.append(Figure("last turns of a socket's chain / first", statistics.median(growth), 1.5, "x"))
    return figures, notes


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
