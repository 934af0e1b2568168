"""The official async Python client, in strict mode, on the main endpoints."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL
from tests.conformance.test_openai_sdk import WEATHER, Answer
from treadle.testing.gates import Gate
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream


async def test_create_retrieve_and_delete(async_client: Any, model: ScriptedUpstream) -> None:
    from openai import NotFoundError

    model.script(Reply(text="Hello."))
    made = await async_client.responses.create(model=MODEL, input="Hi")
    assert made.output_text == "Hello."
    assert await async_client.responses.retrieve(made.id) == made
    await async_client.responses.delete(made.id)
    with pytest.raises(NotFoundError):
        await async_client.responses.retrieve(made.id)


async def test_streams_and_the_stream_helper(async_client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="One two."), Reply(text='{"number": 1, "reason": "so"}'))
    events = [event async for event in await async_client.responses.create(model=MODEL, input="Hi", stream=True)]
    assert events[-1].response.output_text == "One two."
    async with async_client.responses.stream(model=MODEL, input="Hi", text_format=Answer) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == Answer(number=1, reason="so")


async def test_a_tool_loop(async_client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="Sunny."))
    first = await async_client.responses.create(model=MODEL, input="Weather?", tools=[WEATHER])
    output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "sunny"}
    second = await async_client.responses.create(
        model=MODEL, input=[output], previous_response_id=first.id, tools=[WEATHER]
    )
    assert second.output_text == "Sunny."


async def test_many_requests_at_once_share_one_client(async_client: Any, model: ScriptedUpstream) -> None:
    model.script(*[Reply(text="Hello.")] * 8)
    found = await asyncio.gather(*(async_client.responses.create(model=MODEL, input=str(n)) for n in range(8)))
    assert len({response.id for response in found}) == 8
    assert {response.output_text for response in found} == {"Hello."}


async def test_conversations_embeddings_and_models(async_client: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello."))
    conversation = await async_client.conversations.create()
    await async_client.responses.create(model=MODEL, input="Hi", conversation=conversation.id)
    items = [item async for item in async_client.conversations.items.list(conversation.id, limit=1)]
    assert [item.role for item in items] == ["assistant", "user"]
    found = await async_client.embeddings.create(model=MODEL, input="Hi", encoding_format="float")
    assert len(found.data) == 1
    assert MODEL in [entry.id async for entry in async_client.models.list()]


async def test_a_second_turn_in_a_busy_conversation_is_a_conflict(async_client: Any, model: ScriptedUpstream) -> None:
    from openai import ConflictError

    gate = Gate()
    model.script(Reply(text="Slow.", before=gate))
    conversation = await async_client.conversations.create()
    first = asyncio.create_task(async_client.responses.create(model=MODEL, input="A", conversation=conversation.id))
    await model.received()
    with pytest.raises(ConflictError) as caught:
        await async_client.responses.create(model=MODEL, input="B", conversation=conversation.id)
    gate.set()
    assert caught.value.code == "conversation_locked"
    assert (await first).output_text == "Slow."


async def test_cancelling_the_call_stops_the_model(async_client: Any, model: ScriptedUpstream) -> None:
    gate = Gate()
    model.script(Reply(text="Never.", before=gate))
    call = asyncio.create_task(async_client.responses.create(model=MODEL, input="A"))
    request = await model.received()
    call.cancel()
    await request.disconnected.within()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await call
