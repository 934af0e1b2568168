"""Measures the server against its budgets, as CPU of its process and as ratios within one run.

    python bench/run.py            # about five minutes
    python bench/run.py --quick    # seconds
    python bench/run.py --json figures.json

Exit code 1 when a budget is exceeded. Machines are noisy, so wall times have budgets only where people wait for just
this: a search, three tools at once, a long document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import background
import documents
import guardrails
import ingestion
import search_http
import tool_rounds
import websocket
from figures import Figure
from load import Connection, drive
from processes import Process, server, upstream

MODEL = "bench"
WORDS = "word " * 200


class Bench:
    """One run: a scripted upstream, a server, and the figures so far."""

    def __init__(self, up: Process, served: Process, port: int, quick: bool) -> None:
        self._up, self._served, self._port, self._quick = up, served, port, quick
        self.figures: list[Figure] = []
        self.notes: list[str] = []

    def add(self, name: str, value: float, budget: float, unit: str) -> None:
        self.figures.append(Figure(name, value, budget, unit))

    async def streams(self, tokens: int = 500, together: int = 16) -> None:
        """CPU per streamed token, as a multiple of what the upstream itself spends."""
        count = 32 if self._quick else 128
        body = {"model": MODEL, "input": f"!n={tokens}", "stream": True}
        await drive(self._port, body, count=together, together=together)
        ratios: list[float] = []
        for _ in range(1 if self._quick else 3):
            ours, theirs = self._served.cpu_ms(), self._up.cpu_ms()
            figures = await drive(self._port, body, count=count, together=together)
            ours, theirs = self._served.cpu_ms() - ours, self._up.cpu_ms() - theirs
            ratios.append(ours / theirs)
            self.notes.append(
                f"stream: {ours / count / tokens * 1000:.1f} us of CPU per token, upstream "
                f"{theirs / count / tokens * 1000:.1f} us, {count * tokens / figures.seconds:,.0f} tokens/s"
            )
        self.add("CPU per streamed token / upstream's", statistics.median(ratios), 2.0, "x")

    async def answers(self, store: bool, budget: float) -> None:
        """CPU per non-streaming response at 16 at once."""
        count = 100 if self._quick else 400
        body = {"model": MODEL, "input": "!n=20 hello", "store": store}
        await drive(self._port, body, count=32, together=16)
        costs: list[float] = []
        for _ in range(1 if self._quick else 3):
            before = self._served.cpu_ms()
            figures = await drive(self._port, body, count=count, together=16)
            costs.append((self._served.cpu_ms() - before) / count)
        kind = "stored" if store else "non-stored"
        self.notes.append(f"{kind}: {count / figures.seconds:.0f} responses/s, p50 {figures.p50_ms:.1f} ms")
        self.add(f"CPU per {kind} response", statistics.median(costs), budget, "ms")

    async def chain(self, turns: int = 60) -> None:
        """The last turns of a long chain against its first ones."""
        ratios: list[float] = []
        for _ in range(1 if self._quick else 5):
            connection, previous, costs = Connection(self._port), None, list[float]()
            for _ in range(turns):
                body: dict[str, Any] = {"model": MODEL, "input": "!n=200 " + WORDS}
                if previous:
                    body["previous_response_id"] = previous
                before = self._served.cpu_ms()
                status, answer = await connection.post("/v1/responses", body)
                costs.append(self._served.cpu_ms() - before)
                if status != 200:
                    raise RuntimeError(answer.decode())
                previous = json.loads(answer)["id"]
            connection.close()
            sixth = turns // 6
            ratios.append(sum(costs[-sixth:]) / sum(costs[:sixth]))
        self.notes.append(f"chain: ratios {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
        self.add("last turns of a chain / first", statistics.median(ratios), 1.5, "x")


async def growth(up_url: str, turns: int = 60) -> Figure:
    """Bytes of database per byte of chat text, in a database of one chain."""
    with tempfile.TemporaryDirectory() as folder:
        text = 0
        with server(up_url, Path(folder)) as (_, port):
            connection, previous = Connection(port), None
            for _ in range(turns):
                body: dict[str, Any] = {"model": MODEL, "input": "!n=200 " + WORDS}
                if previous:
                    body["previous_response_id"] = previous
                _, answer = await connection.post("/v1/responses", body)
                response = json.loads(answer)
                previous = response["id"]
                text += len(body["input"]) + len(response["output"][0]["content"][0]["text"])
            connection.close()
        size = sum(path.stat().st_size for path in Path(folder).glob("treadle.sqlite3*"))
        return Figure("database / text", size / text, 2.0, "x")


async def measure(quick: bool) -> tuple[list[Figure], list[str]]:
    with upstream() as (up, up_url), tempfile.TemporaryDirectory() as folder:
        with server(up_url, Path(folder)):
            pass  # the first start of an installation also compiles and migrates
        with server(up_url, Path(folder)) as (served, port):
            bench = Bench(up, served, port, quick)
            bench.add("start to first health", served.start_seconds, 1.5, "s")
            bench.add("idle memory", served.rss_mb(), 90.0, "MB")
            await bench.streams()
            await bench.answers(store=True, budget=3.0)
            await bench.answers(store=False, budget=1.5)
            await bench.chain()
            of_sockets, more = await websocket.measure(served, port, quick)
            bench.figures += of_sockets
            bench.notes += more
            in_background, more = await background.measure(served, port, quick)
            bench.figures += in_background
            bench.notes += more
            bench.add("memory after the load", served.rss_mb(), 130.0, "MB")
        bench.figures.append(await growth(up_url))
        return bench.figures, bench.notes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests; noisier figures")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--slack", type=float, default=1.0, help="factor on every budget, for noisy machines")
    options = parser.parse_args(arguments)
    if not Path("/proc/self/schedstat").exists():
        print("bench: skipped, because this system has no /proc/<pid>/schedstat to read CPU times from")
        return 0
    figures, notes = asyncio.run(measure(options.quick))
    for part in (guardrails, tool_rounds, documents, ingestion, search_http):
        found, more = part.measure(options.quick)
        figures, notes = [*figures, *found], [*notes, *more]
    over = [figure for figure in figures if figure.value > figure.budget * options.slack]
    for figure in figures:
        verdict = "OVER" if figure in over else "ok" if figure.value <= figure.budget else "ok within slack"
        print(f"{figure.name:38} {figure.value:8.2f} {figure.unit:2}  budget {figure.budget:g}  {verdict}")
    print(*notes, sep="\n")
    if options.json:
        options.json.write_text(json.dumps({figure.name: figure.value for figure in figures}, indent=1) + "\n")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
