"""A bare HTTP client for load: cheap enough to leave the cores to what is measured."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from dataclasses import dataclass
from typing import Any

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Connection:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Status and whole body."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: b\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        return await self._ask(head, data)

    async def get(self, path: str) -> tuple[int, bytes]:
        return await self._ask(f"GET {path} HTTP/1.1\r\nhost: b", b"")

    async def _ask(self, head: str, data: bytes) -> tuple[int, bytes]:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        self._writer.write(f"{head}\r\n\r\n".encode() + data)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if found := _LENGTH.search(answer):
            return _status(answer), await self._reader.readexactly(int(found.group(1)))
        parts: list[bytes] = []
        while size := int(await self._reader.readline(), 16):
            parts.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return _status(answer), b"".join(parts)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _status(head: bytes) -> int:
    return int(head.split(b" ", 2)[1])


@dataclass(frozen=True)
class Figures:
    requests: int
    seconds: float
    p50_ms: float
    p95_ms: float


async def drive(port: int, body: dict[str, Any], *, count: int, together: int) -> Figures:
    """`count` requests, `together` at a time. RuntimeError unless every one completes."""
    left = iter(range(count))
    taken: list[float] = []

    async def worker() -> None:
        connection = Connection(port)
        for index in left:
            started = time.perf_counter()
            status, answer = await connection.post("/v1/responses", {**body, "input": f"{body['input']} {index}"})
            taken.append((time.perf_counter() - started) * 1000)
            if status != 200 or b'"status":"completed"' not in answer:
                raise RuntimeError(f"request {index} failed with {status}: {answer[-500:]!r}")
        connection.close()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(together):
            group.create_task(worker())
    taken.sort()
    return Figures(count, time.perf_counter() - started, statistics.median(taken), taken[int(0.95 * (len(taken) - 1))])
