"""What tools that the server runs cost it: CPU of a round with an MCP tool, and the time of calls that run together.

A response with many rounds is compared with one without any, both with the same tools on a warm session, so what is
common to all responses drops out. The SDK's part of a round is measured with its own client against the same server.
`run.py` calls this.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
from figures import Figure
from mcp import Client
from processes import Process, server

from treadle.testing.mcp import FakeMcpServer, Speech
from treadle.testing.mcp_tools import FakeTool, Use, text
from treadle.testing.upstream import Call, Received, Reply, ScriptedUpstream

ROUND_MS = 3.0
TOGETHER_MS = 450.0
"""For three tools that take NAP_SECONDS each."""
NAP_SECONDS = 0.3
ROUNDS = 5
WARM = 10
SPEECHES: tuple[Speech, ...] = ("modern", "handshake")


def measure(quick: bool) -> tuple[list[Figure], list[str]]:
    """The figures, and what is worth knowing besides."""
    warnings.simplefilter("ignore")
    notes: list[str] = []
    ours: list[float] = []
    for speech in SPEECHES:
        with FakeMcpServer(speech) as fake, _served() as (process, post):
            responses = 10 if quick else 40
            whole = _round_ms(fake, process, post, responses)
            theirs = asyncio.run(_sdk_ms(fake, responses * ROUNDS))
        ours.append(whole - theirs)
        notes.append(f"MCP, {speech}: {whole:.2f} ms of CPU per round, of which the SDK's own call {theirs:.2f}")
    together = _together_ms(3 if quick else 9)
    return [
        Figure("CPU per MCP tool round beyond the SDK", max(ours), ROUND_MS, "ms"),
        Figure("three tools of 300 ms in one round", together, TOGETHER_MS, "ms"),
    ], notes


class _Post:
    """Makes responses with the tools of an MCP server."""

    def __init__(self, http: httpx2.Client, port: int) -> None:
        self._http, self._port = http, port

    def __call__(self, fake: FakeMcpServer, wanted: str) -> list[dict[str, Any]]:
        """The calls of a response whose input is `wanted`; all must have gone well."""
        tool = {"type": "mcp", "server_label": "fake", "server_url": fake.url}
        body = {"model": "openai/scripted", "input": wanted, "tools": [tool], "max_infer_iters": ROUNDS + 1}
        reply = self._http.post(f"http://127.0.0.1:{self._port}/v1/responses", json=body)
        reply.raise_for_status()
        made = [item for item in reply.json()["output"] if item["type"] == "mcp_call"]
        assert all(item["status"] == "completed" for item in made), reply.text
        return made


@contextmanager
def _served() -> Iterator[tuple[Process, _Post]]:
    """A server that may call servers of this machine, over a model that calls tools as it is told."""
    os.environ["TREADLE_OUTGOING__ALLOW"] = "127.0.0.1"
    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedUpstream(default=_model) as model,
        server(model.url, Path(folder)) as (process, port),
        httpx2.Client(timeout=60) as http,
    ):
        yield process, _Post(http, port)


def _model(request: Received) -> Reply:
    """`5 times` are five rounds with a call each; `3 at once` is one round with three calls."""
    messages = request.body["messages"]
    count, how = messages[0]["content"].split(" ", 1)
    made = sum(message["role"] == "tool" for message in messages)
    if made >= int(count):
        return Reply(text="Done.", chunks=1)
    if how == "times":
        return Reply(calls=[Call("echo", {"text": "hello"})], chunks=1)
    return Reply(calls=[Call("nap") for _ in range(int(count))], chunks=1)


def _round_ms(fake: FakeMcpServer, process: Process, post: _Post, responses: int) -> float:
    """Milliseconds of server CPU per round."""

    def spent(calls: int) -> float:
        begun = 0.0
        for number in range(WARM + responses):
            if number == WARM:
                begun = process.cpu_ms()
            assert len(post(fake, f"{calls} times")) == calls
        return (process.cpu_ms() - begun) / responses

    return (spent(ROUNDS) - spent(0)) / ROUNDS


async def _sdk_ms(fake: FakeMcpServer, calls: int) -> float:
    """Milliseconds of CPU of the SDK's own call, in this thread."""
    async with Client(fake.url, mode="auto" if fake.speech == "modern" else "legacy") as client:
        await client.list_tools()
        for _ in range(20):
            await client.call_tool("echo", {"text": "warm"})
        begun = time.thread_time()
        for _ in range(calls):
            await client.call_tool("echo", {"text": "hello"})
        return (time.thread_time() - begun) * 1000 / calls


def _together_ms(count: int) -> float:
    """Milliseconds that a response with three slow calls in its one round takes, from request to answer."""

    async def nap(_: Use) -> types.CallToolResult:
        await asyncio.sleep(NAP_SECONDS)
        return text("rested")

    taken: list[float] = []
    with FakeMcpServer(tools=[FakeTool("nap", nap)]) as fake, _served() as (_, post):
        for number in range(1 + count):
            begun = time.perf_counter()
            assert len(post(fake, "3 at once")) == 3
            if number:  # the first opens the session
                taken.append((time.perf_counter() - begun) * 1000)
    return statistics.median(taken)
