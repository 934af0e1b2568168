"""The scripted upstream behaves like a model server, byte for byte as scripted, and knows what happened to it."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import Any

import aiohttp
import pytest

from treadle.testing.gates import Gate
from treadle.testing.turns import chunk, pieces, sse
from treadle.testing.upstream import Call, Drop, Raw, Refuse, Reply, ScriptedUpstream, Tokens

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
STREAM = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}


async def post(url: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        return answer.status, await answer.json()


async def stream(url: str, body: dict[str, Any] = STREAM) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        text = (await answer.read()).decode()
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]


def deltas(chunks: list[dict[str, Any]], key: str) -> str:
    return "".join(one["choices"][0]["delta"].get(key) or "" for one in chunks if one["choices"])


async def test_a_reply_is_one_object_when_the_request_does_not_stream(upstream: ScriptedUpstream) -> None:
    upstream.script(Reply(text="Hello", reasoning="Hm", calls=[Call("f", {"a": 1}, "call_1")], usage=Tokens(3, 4)))
    status, body = await post(upstream.url + "/chat/completions", CHAT)
    assert status == 200
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "Hm",
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
    assert body["usage"]["total_tokens"] == 7


async def test_a_streamed_reply_adds_up_to_the_same_turn(upstream: ScriptedUpstream) -> None:
    upstream.script(
        Reply(
            text="Hello  big\nworld ", reasoning="I think", reasoning_field="reasoning", calls=[Call("f", '{"a": 1}')]
        )
    )
    chunks = await stream(upstream.url + "/chat/completions")
    assert deltas(chunks, "content") == "Hello  big\nworld "
    assert deltas(chunks, "reasoning") == "I think"
    calls = [call for one in chunks if one["choices"] for call in one["choices"][0]["delta"].get("tool_calls", [])]
    assert calls[0]["function"] == {"name": "f", "arguments": ""}
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5


async def test_usage_and_logprobs_are_sent_only_when_asked_for(upstream: ScriptedUpstream) -> None:
    upstream.script(Reply(text="a"), Reply(text="a"))
    plain = await stream(upstream.url + "/chat/completions", {**CHAT, "stream": True})
    assert not any("usage" in one for one in plain)
    assert not any("logprobs" in one["choices"][0] for one in plain)
    asked = await stream(upstream.url + "/chat/completions", {**STREAM, "logprobs": True, "top_logprobs": 2})
    [token] = [one["choices"][0]["logprobs"]["content"][0] for one in asked if "logprobs" in str(one)]
    assert token["token"] == "a"
    assert len(token["top_logprobs"]) == 2


async def test_turns_are_taken_in_order_and_requests_are_recorded(upstream: ScriptedUpstream) -> None:
    upstream.script(Reply(text="one"), Refuse(429, {"error": {"message": "Slow down"}}, {"retry-after": "7"}))
    url = upstream.url + "/chat/completions"
    async with aiohttp.ClientSession(headers={"authorization": "Bearer k"}) as session:
        async with session.post(url, json=CHAT) as first:
            assert (await first.json())["choices"][0]["message"]["content"] == "one"
        async with session.post(url, json={**CHAT, "seed": 1}) as second:
            assert second.status == 429
            assert second.headers["retry-after"] == "7"
            assert await second.json() == {"error": {"message": "Slow down"}}
    assert [request.body.get("seed") for request in upstream.requests] == [None, 1]
    assert upstream.requests[0].headers["authorization"] == "Bearer k"
    assert upstream.requests[0].path == "/v1/chat/completions"
    assert upstream.connections == 1, "keep-alive: both requests on one connection"


async def test_raw_writes_arrive_one_by_one_and_exactly(upstream: ScriptedUpstream) -> None:
    writes = [b'data: {"x": "\xf0\x9f', b"\x98\x80", b'"}\r\n\r\n: note\n', b"data:[DONE]"]
    upstream.script(Raw(writes))
    async with (
        aiohttp.ClientSession() as session,
        session.post(upstream.url + "/chat/completions", json=STREAM) as answer,
    ):
        seen = [data async for data, _ in answer.content.iter_chunks() if data]
    assert seen == writes


async def test_a_gate_holds_the_next_write_back_until_it_is_opened(upstream: ScriptedUpstream) -> None:
    gate = asyncio.Event()
    upstream.script(Raw([sse(chunk({"content": "a"}), done=False), gate, sse()]))
    async with (
        aiohttp.ClientSession() as session,
        session.post(upstream.url + "/chat/completions", json=STREAM) as answer,
    ):
        first, _ = await answer.content.readchunk()
        assert b'"a"' in first
        assert not upstream.requests[0].answered.is_set()
        gate.set()
        second, _ = await answer.content.readchunk()
    assert second == b"data: [DONE]\n\n"


async def test_a_reply_can_be_held_before_its_start_and_between_its_chunks(upstream: ScriptedUpstream) -> None:
    before, held = Gate(), Gate()
    upstream.script(Reply(text="a b c", before=before, held={2: held}))
    task = asyncio.create_task(stream(upstream.url + "/chat/completions"))
    request = await upstream.received()
    assert not task.done()
    before.set()
    assert not request.answered.is_set()
    held.set()
    assert deltas(await asyncio.wait_for(task, 5), "content") == "a b c"
    await request.answered.within(5)
    assert not request.disconnected.is_set()


@pytest.mark.parametrize("after", [0, 2])
async def test_a_drop_breaks_the_connection_off(upstream: ScriptedUpstream, after: int) -> None:
    upstream.script(Drop(after=after))
    seen = b""
    with pytest.raises(aiohttp.ClientError):
        async with (
            aiohttp.ClientSession() as session,
            session.post(upstream.url + "/chat/completions", json=STREAM) as answer,
        ):
            async for data in answer.content.iter_any():
                seen += data
    assert seen.count(b"data: ") == after


async def test_a_client_that_leaves_is_noticed_and_its_connection_is_gone(upstream: ScriptedUpstream) -> None:
    never = Gate()
    upstream.script(Reply(text="a b c", held={2: never}))
    async with aiohttp.ClientSession() as session:
        answer = await session.post(upstream.url + "/chat/completions", json=STREAM)
        await answer.content.readchunk()
        assert upstream.open_connections == 1
        answer.close()
        await upstream.requests[0].disconnected.within(5)
    assert upstream.open_connections == 0
    assert not upstream.requests[0].answered.is_set()


async def test_an_unscripted_request_is_a_500_and_is_reported() -> None:
    async with ScriptedUpstream() as upstream:
        status, body = await post(upstream.url + "/chat/completions", CHAT)
        assert status == 500
        assert body["error"]["type"] == "unscripted"
    with pytest.raises(AssertionError, match="nothing was scripted for POST /v1/chat/completions"):
        upstream.assert_consumed()


async def test_a_turn_that_nobody_asked_for_is_reported() -> None:
    async with ScriptedUpstream(Reply(text="unused")) as upstream:
        pass
    with pytest.raises(AssertionError, match="never asked for: Reply"):
        upstream.assert_consumed()


async def test_a_body_that_is_not_json_is_reported() -> None:
    async with (
        ScriptedUpstream(default=Reply()) as upstream,
        aiohttp.ClientSession() as session,
        session.post(upstream.url + "/chat/completions", data=b"{") as answer,
    ):
        assert answer.status == 200
    with pytest.raises(AssertionError, match="the script broke"):
        upstream.assert_consumed()


async def test_a_default_may_depend_on_the_request() -> None:
    def echo(request: Any) -> Reply:
        return Reply(text=request.body["messages"][-1]["content"])

    async with ScriptedUpstream(default=echo) as upstream:
        bodies = [{**CHAT, "messages": [{"role": "user", "content": f"{n}"}]} for n in range(8)]
        answers = await asyncio.gather(*(post(upstream.url + "/chat/completions", body) for body in bodies))
    assert [body["choices"][0]["message"]["content"] for _, body in answers] == [f"{n}" for n in range(8)]
    upstream.assert_consumed()


async def test_models_embeddings_and_completions_answer() -> None:
    async with ScriptedUpstream(Reply(text="one two"), models=["a/b", "c"]) as upstream:
        async with aiohttp.ClientSession() as session, session.get(upstream.url + "/models") as answer:
            assert [model["id"] for model in (await answer.json())["data"]] == ["a/b", "c"]
        _, vectors = await post(upstream.url + "/embeddings", {"model": "e", "input": ["red cat", "red cat", "dog"]})
        one, same, other = (row["embedding"] for row in vectors["data"])
        assert one == same != other
        assert sum(value * value for value in one) == pytest.approx(1)
        _, packed = await post(
            upstream.url + "/embeddings", {"model": "e", "input": "red cat", "encoding_format": "base64"}
        )
        assert isinstance(packed["data"][0]["embedding"], str)
        _, text = await post(upstream.url + "/completions", {"model": "m", "prompt": "x"})
        assert text["choices"][0]["text"] == "one two"
        assert (await post(upstream.url + "/nowhere", {}))[0] == 404
    upstream.assert_consumed()


def test_it_serves_a_test_that_has_no_event_loop() -> None:
    with ScriptedUpstream(Reply(text="from a thread")) as upstream:
        request = urllib.request.Request(
            upstream.url + "/chat/completions", json.dumps(CHAT).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            body = json.load(answer)
        assert upstream.received_blocking().body == CHAT
    assert body["choices"][0]["message"]["content"] == "from a thread"
    upstream.assert_consumed()


def test_a_gate_opened_in_one_thread_wakes_a_loop_in_another() -> None:
    gate = Gate()
    with ScriptedUpstream(Reply(text="held", before=gate)) as upstream:

        async def ask() -> Any:
            task = asyncio.create_task(post(upstream.url + "/chat/completions", CHAT))
            await upstream.received()
            gate.set()
            return await asyncio.wait_for(task, 5)

        status, _ = asyncio.run(ask())
    assert status == 200


@pytest.mark.parametrize("text", ["", "a", " a b ", "a\n\nb  c", "   ", "語" * 7])
@pytest.mark.parametrize("parts", [None, 1, 3, 100])
def test_pieces_join_to_the_text(text: str, parts: int | None) -> None:
    assert "".join(pieces(text, parts)) == text
