"""The dialect over real sockets: model lists, bodies in pieces, waits, and what happens to connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.errors import ServerError, UpstreamBadStream, UpstreamFault, UpstreamRefused, UpstreamTimeout
from treadle.models import openai_chat
from treadle.models.openai_chat import ChatCompletions, Endpoint
from treadle.models.upstream import open_session
from treadle.ports import ModelChunk, ModelMessage, ModelRequest
from treadle.testing.gates import Gate
from treadle.testing.turns import chunk, sse
from treadle.testing.upstream import Call, Drop, Raw, Refuse, Reply, ScriptedUpstream

REQUEST = ModelRequest(model="scripted", messages=[ModelMessage("user", "Hi")])


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session() as found:
        yield found


@pytest.fixture
def model(upstream: ScriptedUpstream, session: aiohttp.ClientSession) -> ChatCompletions:
    return ChatCompletions(Endpoint(name="scripted", url=upstream.url), session)


async def collected(model: ChatCompletions) -> list[ModelChunk]:
    async with asyncio.timeout(20):
        return [one async for batch in model.stream(REQUEST) for one in batch]


async def test_what_comes_in_one_read_is_one_batch(model: ChatCompletions, upstream: ScriptedUpstream) -> None:
    upstream.script(Reply(text="One two three.", burst=True))
    batches = [batch async for batch in model.stream(REQUEST)]
    assert len(batches) == 1
    assert "".join(one.text for one in batches[0]) == "One two three."


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 900), max_size=6))
def test_any_cut_into_tcp_writes_gives_the_same_chunks(cuts: list[int]) -> None:
    deltas = [{"content": "é\u2028"}, {"content": "\U0001f600 b"}, {"reasoning_content": "Hm."}]
    stream = sse(*map(chunk, deltas), chunk({}, finish="stop")).replace(b"\n", b"\r\n")
    points = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    async def read() -> str:
        async with (
            ScriptedUpstream(Raw([stream[a:b] for a, b in pairwise(points)])) as upstream,
            open_session() as session,
        ):
            found = await collected(ChatCompletions(Endpoint(name="s", url=upstream.url), session))
            return "".join(one.text + one.reasoning for one in found)

    assert asyncio.run(read()) == "é\u2028\U0001f600 bHm."


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ({"object": "list", "data": [{"id": "a"}, {"id": "b", "object": "model"}]}, ["a", "b"]),
        ([{"id": "a"}, {"id": "b"}], ["a", "b"]),
        ({"object": "list", "data": None}, []),
        ({"data": [{"name": "no id"}, {"id": "a"}]}, ["a"]),
        (
            {"data": [{"id": f"model-{n}", "description": "x" * 500} for n in range(2000)]},
            [f"model-{n}" for n in range(2000)],
        ),
    ],
    ids=["usual", "bare array", "null", "no id", "a megabyte"],
)
async def test_model_lists_of_all_shapes_are_read_whole(
    session: aiohttp.ClientSession, listed: Any, expected: list[str]
) -> None:
    async with serving(json.dumps(listed).encode()) as url:
        assert await ChatCompletions(Endpoint(name="s", url=url), session).models() == expected


@pytest.mark.parametrize("body", [b"", b"<html>", b"{no", b"7", b"[" * 50_000, b'{"data": "x"}'])
async def test_what_is_no_model_list_is_a_fault(session: aiohttp.ClientSession, body: bytes) -> None:
    async with serving(body) as url:
        with pytest.raises(UpstreamBadStream):
            await ChatCompletions(Endpoint(name="s", url=url), session).models()


async def test_a_long_refusal_is_read_to_its_end(model: ChatCompletions, upstream: ScriptedUpstream) -> None:
    upstream.script(Refuse(400, {"padding": "x" * 200_000, "error": {"message": "At the end."}}))
    with pytest.raises(UpstreamRefused, match="At the end"):
        await collected(model)


async def test_a_connection_is_used_again_after_good_ends_and_refusals(
    model: ChatCompletions, upstream: ScriptedUpstream
) -> None:
    upstream.script(Reply(text="a"), Refuse(400), Reply(text="b", calls=[Call("f")]), Reply(text="c", burst=True))
    for _ in range(4):
        try:
            await collected(model)
        except ServerError as fault:
            assert fault.status == 400  # noqa: PT017
    assert upstream.connections == 1


async def test_closing_the_stream_closes_the_connection(model: ChatCompletions, upstream: ScriptedUpstream) -> None:
    upstream.script(Reply(text="One two", held={2: Gate()}))
    async with aclosing(model.stream(REQUEST)) as batches:
        await anext(batches)
    await upstream.requests[0].disconnected.within()


@pytest.mark.parametrize("before", [True, False])
async def test_cancelling_the_reader_closes_the_connection(
    model: ChatCompletions, upstream: ScriptedUpstream, before: bool
) -> None:
    upstream.script(Reply(text="One two", before=Gate()) if before else Reply(text="One two", held={2: Gate()}))
    task = asyncio.create_task(collected(model))
    request = await upstream.received()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await request.disconnected.within()


async def test_a_kept_connection_that_the_server_closed_is_replaced(
    model: ChatCompletions, upstream: ScriptedUpstream
) -> None:
    upstream.script(Reply(text="a"), Drop(), Reply(text="b"))
    await collected(model)
    assert [one.text for one in await collected(model) if one.text] == ["b"]


async def test_silence_is_a_timeout(upstream: ScriptedUpstream, session: aiohttp.ClientSession) -> None:
    model = ChatCompletions(Endpoint(name="s", url=upstream.url, idle_timeout=0.2), session)
    upstream.script(Reply(text="One two", held={2: Gate()}))
    with pytest.raises(UpstreamTimeout):
        await collected(model)


async def test_what_came_before_a_break_is_kept(model: ChatCompletions, upstream: ScriptedUpstream) -> None:
    upstream.script(Drop(after=3, reply=Reply(text="One two three four.")))
    found: list[str] = []
    with pytest.raises(UpstreamFault, match="broke off"):
        async for batch in model.stream(ModelRequest(model="m", messages=[], watched=False)):
            found += [one.text for one in batch]
    assert "".join(found) == "One two "


async def test_a_line_kept_open_after_the_finish_reason_does_not_hold_the_answer_back(
    model: ChatCompletions, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.models.openai_chat._LATE_SECONDS", 0.2)
    upstream.script(Raw([sse(chunk({"content": "Hi"}), chunk({}, finish="stop"), done=False), Gate()]))
    assert [one.text for one in await collected(model) if one.text] == ["Hi"]
    await upstream.requests[0].disconnected.within()


async def test_pings_after_the_finish_reason_do_not_keep_the_answer_open(
    model: ChatCompletions, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.models.openai_chat._LATE_SECONDS", 0.5)
    pings = [Gate() for _ in range(200)]
    upstream.script(
        Raw(
            [
                sse(chunk({"content": "Hi"}), chunk({}, finish="stop"), done=False),
                *[part for gate in pings for part in (gate, b": ping\n\n")],
            ]
        )
    )

    async def ping() -> None:
        for gate in pings:
            await asyncio.sleep(0.1)  # the pace of the server's pings
            gate.set()

    pinging = asyncio.create_task(ping())
    try:
        async with asyncio.timeout(10):
            assert [one.text for one in await collected(model) if one.text] == ["Hi"]
    finally:
        pinging.cancel()


async def test_a_forwarded_answer_without_end_is_cut_off(
    model: ChatCompletions, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.models.openai_chat._MAX_FORWARDED", 10_000)
    upstream.script(Raw([b"x" * 900] * 20), Raw([b"x" * 900] * 5))
    for fits in (False, True):
        reply = await model.forward("/chat/completions", b'{"model": "scripted"}', "scripted")
        try:
            if fits:
                assert await reply.read() == b"x" * 4500
            else:
                with pytest.raises(UpstreamBadStream, match="does not end"):
                    await reply.read()
        finally:
            await reply.close()


def test_what_one_streamed_answer_may_hold_is_bounded_well_below_a_machines_memory() -> None:
    assert openai_chat._MAX_STREAM <= 32 * 2**20


async def test_an_answer_without_end_is_cut_off(
    model: ChatCompletions, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.models.openai_chat._MAX_STREAM", 10_000)
    upstream.script(Raw([sse(chunk({"content": "x" * 900}), done=False)] * 20))
    with pytest.raises(UpstreamBadStream, match="does not end"):
        await collected(model)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_http_is_a_fault(session: aiohttp.ClientSession, head: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(UpstreamFault):
            await collected(ChatCompletions(Endpoint(name="s", url=url, retries=0), session))


async def test_no_secret_is_logged_or_told(session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n" if b"chat" in head else refusal)
        writer.close()

    refusal = b"HTTP/1.1 401 No\r\nconnection: close\r\n\r\nsk-live-1 and Basic dXNlcjpwYXNz, dXNlcjpwYXNz"
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        headers = {"x-gateway": "Basic dXNlcjpwYXNz", "x-team": "and"}
        end = Endpoint(name="s", url=url, key="sk-live-1", headers=headers, retries=0)
        with pytest.raises(UpstreamBadStream):
            await collected(ChatCompletions(end, session))
        with pytest.raises(UpstreamRefused, match=r"\*\*\* and \*\*\*, \*\*\*"):
            await ChatCompletions(end, session).models()
    assert "broke off" in caplog.text
    assert "sk-live-1" not in caplog.text
    assert "dXNlcjpwYXNz" not in caplog.text


class serving:  # noqa: N801 -- used as a function
    """A server that answers every GET with `body`, in two TCP writes. Gives its base URL."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        half = len(self._body) // 2
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(self._body)
        )
        for part in (self._body[:half], self._body[half:]):
            writer.write(part)
            await writer.drain()
        writer.close()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
