"""The OpenAI Agents SDK over its WebSocket model: the runner's tool loop, streamed, chained by the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, sent
from treadle.testing.server import RunningServer
from treadle.testing.turns import Call, Drop, Reply
from treadle.testing.upstream import ScriptedUpstream

agents = pytest.importorskip("agents", reason="openai-agents is not installed; it comes with the dev extra")


@pytest.fixture
async def llm(server: RunningServer) -> AsyncIterator[Any]:
    from agents.models.openai_responses import OpenAIResponsesWSModel
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        found = OpenAIResponsesWSModel(model=MODEL, openai_client=client)
        yield found
        await found.close()


def agent(llm: Any, **options: Any) -> Any:
    @agents.function_tool  # type: ignore[untyped-decorator, unused-ignore]
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"Sunny in {city}."

    return agents.Agent(name="Forecaster", model=llm, tools=[get_weather], **options)


async def test_run_drives_a_tool_loop_over_one_connection(
    llm: Any, server: RunningServer, model: ScriptedUpstream
) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="Sunny."), Reply(text="Yes."))
    result = await agents.Runner.run(agent(llm), "Weather in Rome?", auto_previous_response_id=True)
    assert result.final_output == "Sunny."
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]
    again = await agents.Runner.run(agent(llm), "Sure?", previous_response_id=result.last_response_id)
    assert again.final_output == "Yes."
    assert len(sent(model, 3)) == 5
    assert len([one for one in server._server.server_state.connections if hasattr(one, "_protocol")]) == 1


async def test_nothing_needs_to_be_stored(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="Sunny."))
    unstored = agents.ModelSettings(store=False)
    result = await agents.Runner.run(
        agent(llm, model_settings=unstored), "Weather in Rome?", auto_previous_response_id=True
    )
    assert result.final_output == "Sunny."
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]


async def test_run_streamed_drives_a_tool_loop(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="It is sunny."))
    result = agents.Runner.run_streamed(agent(llm), "Weather in Rome?")
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == result.final_output == "It is sunny."


async def test_a_failure_reaches_the_runner(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Drop(after=3))
    with pytest.raises(Exception, match=r"(?i)broke off|stream|response.failed|error"):
        await agents.Runner.run(agent(llm), "Break.")
