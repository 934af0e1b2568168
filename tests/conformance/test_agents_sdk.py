"""The OpenAI Agents SDK: its runner drives tool loops and handoffs against the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, sent
from treadle.testing.server import RunningServer
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream

agents = pytest.importorskip("agents", reason="openai-agents is not installed; it comes with the dev extra")


@pytest.fixture
async def llm(server: RunningServer) -> AsyncIterator[Any]:
    """The SDK's model over the Responses API, without tracing, which would call home."""
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        yield agents.OpenAIResponsesModel(model=MODEL, openai_client=client)


def _weather_tool(asked: list[str]) -> Any:
    @agents.function_tool  # type: ignore[untyped-decorator, unused-ignore]
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"Sunny in {city}."

    return get_weather


async def test_run_drives_a_tool_loop(llm: Any, model: ScriptedUpstream) -> None:
    model.script(
        Reply(
            reasoning="Look it up.",
            calls=[Call("get_weather", {"city": "Rome"}), Call("get_weather", {"city": "Oslo"})],
        ),
        Reply(text="Sunny in both."),
    )
    asked: list[str] = []
    agent = agents.Agent(name="Forecaster", instructions="Be short.", model=llm, tools=[_weather_tool(asked)])
    result = await agents.Runner.run(agent, "Weather in Rome and Oslo?")
    assert result.final_output == "Sunny in both."
    assert sorted(asked) == ["Oslo", "Rome"]
    assert [message["role"] for message in sent(model, 2)] == ["system", "user", "assistant", "tool", "tool"]
    assert result.context_wrapper.usage.total_tokens == 30


async def test_run_streamed_drives_a_tool_loop(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="It is sunny."))
    asked: list[str] = []
    agent = agents.Agent(name="Forecaster", model=llm, tools=[_weather_tool(asked)])
    result = agents.Runner.run_streamed(agent, "Weather in Rome?")
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == "It is sunny."
    assert (result.final_output, asked) == ("It is sunny.", ["Rome"])


async def test_a_handoff_reaches_the_other_agent(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("transfer_to_italian", {})]), Reply(text="Ciao."))
    italian = agents.Agent(name="Italian", handoff_description="Speaks Italian.", model=llm)
    triage = agents.Agent(name="Triage", handoffs=[italian], model=llm)
    result = await agents.Runner.run(triage, "Say hello in Italian.")
    assert (result.final_output, result.last_agent.name) == ("Ciao.", "Italian")


async def test_structured_output_is_parsed(llm: Any, model: ScriptedUpstream) -> None:
    from tests.conformance.test_openai_sdk import Answer

    model.script(Reply(text='{"number": 4, "reason": "sum"}'))
    result = await agents.Runner.run(agents.Agent(name="Adder", model=llm, output_type=Answer), "2+2?")
    assert result.final_output == Answer(number=4, reason="sum")


async def test_turns_chain_by_previous_response_id(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello Alice."), Reply(text="Alice."))
    agent = agents.Agent(name="Listener", model=llm)
    first = await agents.Runner.run(agent, "I am Alice.")
    second = await agents.Runner.run(agent, "Who am I?", previous_response_id=first.last_response_id)
    assert second.final_output == "Alice."
    assert [message["content"] for message in sent(model, 2)] == ["I am Alice.", "Hello Alice.", "Who am I?"]


async def test_a_session_kept_in_a_conversation_of_the_server(llm: Any, model: ScriptedUpstream) -> None:
    """The SDK reads and writes the history through `/v1/conversations`."""
    model.script(
        Reply(reasoning="Look.", calls=[Call("get_weather", {"city": "Rome"})]),
        Reply(text="Sunny."),
        Reply(text="Rome."),
    )
    session = agents.OpenAIConversationsSession(openai_client=llm._client)
    agent = agents.Agent(name="Forecaster", model=llm, tools=[_weather_tool([])])
    await agents.Runner.run(agent, "Weather in Rome?", session=session)
    result = await agents.Runner.run(agent, "Which city?", session=session)
    assert result.final_output == "Rome."
    assert [message["role"] for message in sent(model, 3)] == ["user", "assistant", "tool", "assistant", "user"]
    assert len(await session.get_items()) == 7
    await session.clear_session()


async def test_turns_in_a_conversation_by_its_id(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="Sunny."))
    conversation = await llm._client.conversations.create()
    agent = agents.Agent(name="Forecaster", model=llm, tools=[_weather_tool([])])
    result = await agents.Runner.run(agent, "Weather in Rome?", conversation_id=conversation.id)
    assert result.final_output == "Sunny."
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]


async def test_the_chat_completions_model_of_the_sdk_runs_a_tool_loop(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="Sunny."))
    chat = agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=llm._client)
    agent = agents.Agent(name="Forecaster", model=chat, tools=[_weather_tool([])])
    assert (await agents.Runner.run(agent, "Weather in Rome?")).final_output == "Sunny."
