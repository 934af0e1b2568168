"""What a round with an MCP tool costs the server: CPU of a model call and a tool call, beyond the SDK's own call.

    python bench/tool_rounds.py [--responses 40] [--rounds 5]

A response with many rounds is compared with one without any, both with the same tools on a warm session, so what is
common to all responses drops out. The SDK's part is measured with its own client against the same server. Exits with 1
above the bound.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import httpx2
from mcp import Client
from processes import server

from treadle.testing.mcp import FakeMcpServer
from treadle.testing.upstream import Call, Received, Reply, ScriptedUpstream

BOUND_MS = 3.0
WARM = 10
SPEECHES = ("modern", "handshake")


def scripted(request: Received) -> Reply:
    """As many calls, one after the other, as the first message says."""
    messages = request.body["messages"]
    made = sum(message["role"] == "tool" for message in messages)
    if made >= int(messages[0]["content"]):
        return Reply(text="Done.", chunks=1)
    return Reply(calls=[Call("echo", {"text": "hello"})], chunks=1)


def server_ms(fake: FakeMcpServer, responses: int, rounds: int) -> float:
    """Milliseconds of server CPU per round."""
    os.environ["TREADLE_OUTGOING__ALLOW"] = "127.0.0.1"
    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedUpstream(default=scripted) as model,
        server(model.url, Path(folder)) as (process, port),
        httpx2.Client(timeout=60) as http,
    ):

        def spent(calls: int) -> float:
            tool = {"type": "mcp", "server_label": "fake", "server_url": fake.url}
            body = {"model": "openai/scripted", "input": str(calls), "tools": [tool], "max_infer_iters": rounds + 1}
            begun = 0.0
            for number in range(WARM + responses):
                if number == WARM:
                    begun = process.cpu_ms()
                reply = http.post(f"http://127.0.0.1:{port}/v1/responses", json=body)
                reply.raise_for_status()
                made = [item for item in reply.json()["output"] if item["type"] == "mcp_call"]
                assert [item["status"] for item in made] == ["completed"] * calls, reply.text
            return (process.cpu_ms() - begun) / responses

        return (spent(rounds) - spent(0)) / rounds


async def sdk_ms(fake: FakeMcpServer, calls: int) -> float:
    """Milliseconds of CPU of the SDK's own call, in this thread."""
    async with Client(fake.url, mode="auto" if fake.speech == "modern" else "legacy") as client:
        await client.list_tools()
        for _ in range(20):
            await client.call_tool("echo", {"text": "warm"})
        begun = time.thread_time()
        for _ in range(calls):
            await client.call_tool("echo", {"text": "hello"})
        return (time.thread_time() - begun) * 1000 / calls


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    worst = 0.0
    for speech in SPEECHES:
        with FakeMcpServer(speech) as fake:  # type: ignore[arg-type]
            whole = server_ms(fake, given.responses, given.rounds)
            theirs = asyncio.run(sdk_ms(fake, given.responses * given.rounds))
        ours = whole - theirs
        worst = max(worst, ours)
        print(f"{speech:10} {whole:5.2f} ms CPU per round, of which the SDK's call {theirs:5.2f}: ours {ours:5.2f}")
    print(f"bound: {BOUND_MS:g} ms")
    return 1 if worst > BOUND_MS else 0


if __name__ == "__main__":
    sys.exit(main())
