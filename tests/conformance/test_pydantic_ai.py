"""Pydantic AI's OpenAIResponsesModel: tool loops, streams and structured output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, sent
from tests.conformance.test_openai_sdk import Answer
from treadle.testing.server import RunningServer
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream

pydantic_ai = pytest.importorskip(
    "pydantic_ai", reason="pydantic-ai-slim[openai] is not installed; it comes with the dev extra"
)


@pytest.fixture
async def llm(server: RunningServer) -> AsyncIterator[Any]:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client))


def _agent(llm: Any, asked: list[str], **options: Any) -> Any:
    agent = pydantic_ai.Agent(llm, **options)

    @agent.tool_plain  # type: ignore[untyped-decorator, unused-ignore]
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"Sunny in {city}."

    return agent


async def test_run_drives_a_tool_loop(llm: Any, model: ScriptedUpstream) -> None:
    model.script(
        Reply(reasoning="Look.", calls=[Call("get_weather", {"city": "Rome"}), Call("get_weather", {"city": "Oslo"})]),
        Reply(text="Sunny in both."),
    )
    asked: list[str] = []
    result = await _agent(llm, asked, instructions="Be short.").run("Weather in Rome and Oslo?")
    assert result.output == "Sunny in both."
    assert sorted(asked) == ["Oslo", "Rome"]
    assert [message["role"] for message in sent(model, 2)] == ["system", "user", "assistant", "tool", "tool"]


async def test_run_stream_drives_a_tool_loop(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="It is sunny."))
    asked: list[str] = []
    async with _agent(llm, asked).run_stream("Weather in Rome?") as result:
        deltas = [delta async for delta in result.stream_text(delta=True, debounce_by=None)]
    assert "".join(deltas) == "It is sunny."
    assert len(deltas) > 1
    assert asked == ["Rome"]


async def test_structured_output_comes_from_an_output_tool(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("final_result", {"number": 4, "reason": "sum"})]))
    result = await pydantic_ai.Agent(llm, output_type=Answer).run("2+2?")
    assert result.output == Answer(number=4, reason="sum")


async def test_structured_output_comes_from_a_json_schema(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text='{"number": 4, "reason": "sum"}'))
    result = await pydantic_ai.Agent(llm, output_type=pydantic_ai.NativeOutput(Answer)).run("2+2?")
    assert result.output == Answer(number=4, reason="sum")
    assert model.requests[0].body["response_format"]["type"] == "json_schema"


async def test_a_history_with_reasoning_and_calls_can_be_continued(llm: Any, model: ScriptedUpstream) -> None:
    model.script(
        Reply(reasoning="Look.", calls=[Call("get_weather", {"city": "Rome"})]),
        Reply(text="Sunny."),
        Reply(text="As I said."),
    )
    agent = _agent(llm, [])
    first = await agent.run("Weather in Rome?")
    second = await agent.run("Again?", message_history=first.all_messages())
    assert second.output == "As I said."
    assert [message["role"] for message in sent(model, 3)] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("kept", ["previous_response_id", "conversation_id"])
async def test_history_kept_on_the_server_is_not_sent_again(llm: Any, model: ScriptedUpstream, kept: str) -> None:
    model.script(
        Reply(reasoning="Look.", calls=[Call("get_weather", {"city": "Rome"})]),
        Reply(text="Sunny."),
        Reply(text="As I said."),
    )
    settings: dict[str, str] = {"openai_previous_response_id": "auto"}
    if kept == "conversation_id":
        conversation = await llm.client.conversations.create()
        settings = {"openai_conversation_id": conversation.id}
    agent = _agent(llm, [], model_settings=settings)
    first = await agent.run("Weather in Rome?")
    second = await agent.run("Again?", message_history=first.all_messages())
    assert second.output == "As I said."
    assert [message["role"] for message in sent(model, 3)] == ["user", "assistant", "tool", "assistant", "user"]


async def test_sealed_reasoning_travels_with_a_history_that_is_not_stored(llm: Any, model: ScriptedUpstream) -> None:
    model.script(
        Reply(reasoning="Look.", calls=[Call("get_weather", {"city": "Rome"})]),
        Reply(text="Sunny."),
    )
    settings = {"openai_store": False, "openai_reasoning_effort": "low", "openai_reasoning_summary": "auto"}
    result = await _agent(llm, [], model_settings=settings).run("Weather in Rome?")
    assert result.output == "Sunny."
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]
