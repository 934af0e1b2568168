"""The scripted model plays its scripts in order and reports what did not go by them."""

from __future__ import annotations

import asyncio

import pytest

from treadle.errors import UpstreamBadStream
from treadle.ports import ModelChunk, ModelMessage, ModelRequest
from treadle.testing.gates import Gate
from treadle.testing.scripted import ScriptedModel, calls, says


def request(*texts: str) -> ModelRequest:
    return ModelRequest(model="m", messages=[ModelMessage("user", text) for text in texts])


async def drain(model: ScriptedModel, asked: ModelRequest) -> list[list[ModelChunk]]:
    return [read async for read in model.stream(asked)]


async def test_each_call_plays_the_next_script() -> None:
    model = ScriptedModel(calls("f", '{"a": 1}', text="Let me see."), says("Done", "."))
    first = [chunk for read in await drain(model, request("one")) for chunk in read]
    assert "".join(chunk.call.arguments for chunk in first if chunk.call) == '{"a": 1}'
    assert first[-1].finish == "tool_calls"
    second = [chunk for read in await drain(model, request("one", "two")) for chunk in read]
    assert "".join(chunk.text for chunk in second) == "Done."
    model.assert_consumed()


async def test_chunks_that_came_together_stay_together() -> None:
    model = ScriptedModel([[ModelChunk(text="a"), ModelChunk(text="b")], ModelChunk(finish="stop")])
    assert [len(read) for read in await drain(model, request())] == [2, 1]


async def test_requests_are_kept_as_they_were() -> None:
    model = ScriptedModel(says("x"))
    asked = request("one")
    await drain(model, asked)
    asked.messages.append(ModelMessage("user", "later"))
    assert [message.content for message in model.requests[0].messages] == ["one"]


async def test_a_scripted_fault_is_raised_where_it_stands() -> None:
    model = ScriptedModel([ModelChunk(text="a"), UpstreamBadStream("broke off")])
    seen = []
    with pytest.raises(UpstreamBadStream):
        async for read in model.stream(request()):
            seen.append(read)
    assert len(seen) == 1
    model.assert_consumed()
    assert model.abandoned == 0


async def test_a_call_without_a_script_fails_and_is_reported() -> None:
    model = ScriptedModel()
    with pytest.raises(AssertionError, match="model call 1 has no script"):
        await drain(model, request())
    with pytest.raises(AssertionError, match="model call 1 has no script"):
        model.assert_consumed()


async def test_a_script_that_nobody_asked_for_is_reported() -> None:
    with pytest.raises(AssertionError, match="never asked for"):
        ScriptedModel(says("x")).assert_consumed()


async def test_a_closed_stream_counts_as_abandoned_and_an_open_one_is_reported() -> None:
    model = ScriptedModel(says("a", "b"))
    stream = model.stream(request())
    await anext(stream)
    with pytest.raises(AssertionError, match="left open"):
        model.assert_consumed()
    await stream.aclose()
    model.assert_consumed()
    assert model.abandoned == 1
    assert model.stopped.is_set()


async def test_a_gate_holds_the_script_and_cancelling_leaves_it() -> None:
    gate = Gate()
    model = ScriptedModel([ModelChunk(text="a"), gate, ModelChunk(finish="stop")], [Gate(), ModelChunk(text="never")])
    stream = model.stream(request())
    assert (await anext(stream))[0].text == "a"
    rest = asyncio.ensure_future(anext(stream))
    gate.set()
    assert (await asyncio.wait_for(rest, 5))[0].finish == "stop"
    await stream.aclose()
    waiting = asyncio.create_task(drain(model, request()))
    while len(model.requests) < 2:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert model.abandoned == 1
