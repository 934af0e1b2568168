"""The OpenAI Agents SDK with tools that the server runs: hosted MCP servers, with and without approval, web search."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, sent
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.server import RunningServer
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream
from treadle.testing.web import FakeWeb

agents = pytest.importorskip("agents", reason="openai-agents is not installed; it comes with the dev extra")


@pytest.fixture
def server(server_with_tools: RunningServer) -> RunningServer:
    return server_with_tools


@pytest.fixture
async def llm(server: RunningServer) -> AsyncIterator[Any]:
    """The SDK's model over the Responses API, strict about types and without tracing, which would call home."""
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(
        base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield agents.OpenAIResponsesModel(model=MODEL, openai_client=client)


def _hosted(mcp: FakeMcpServer, approve: Any = None, **config: Any) -> Any:
    declared = {"type": "mcp", "server_label": "fake", "server_url": mcp.url, **config}
    return agents.HostedMCPTool(tool_config=declared, on_approval_request=approve)


def _kinds(result: Any) -> list[str]:
    return [item.raw_item.type for item in result.new_items if hasattr(item.raw_item, "type")]


async def test_a_hosted_mcp_tool_is_used_without_approval(
    llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "hello"})]), Reply(text="It said hello."))
    tool = _hosted(mcp, require_approval="never")
    result = await agents.Runner.run(agents.Agent(name="Caller", model=llm, tools=[tool]), "Say hello to it.")
    assert result.final_output == "It said hello."
    assert mcp.calls == [("echo", {"text": "hello"})]
    assert _kinds(result) == ["mcp_list_tools", "mcp_call", "message"]


async def test_a_hosted_mcp_tool_is_used_in_a_streamed_run(
    llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "hello"})]), Reply(text="It said hello."))
    agent = agents.Agent(name="Caller", model=llm, tools=[_hosted(mcp, require_approval="never")])
    result = agents.Runner.run_streamed(agent, "Say hello to it.")
    names = [event.name async for event in result.stream_events() if event.type == "run_item_stream_event"]
    assert result.final_output == "It said hello."
    assert names == ["mcp_list_tools", "tool_called", "message_output_created"]
    assert len(mcp.calls) == 1


@pytest.mark.parametrize("chained", [False, True])
async def test_a_call_that_the_callback_approves_runs_once(
    llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer, chained: bool
) -> None:
    """Either way of going on: the SDK sends the whole history, or what is new after `previous_response_id`."""
    model.script(Reply(calls=[Call("echo", {"text": "careful"})]), Reply(text="Done."))
    asked: list[tuple[str, str]] = []

    def approve(request: Any) -> dict[str, Any]:
        asked.append((request.data.name, request.data.arguments))
        return {"approve": True}

    tool = _hosted(mcp, approve, require_approval="always")
    agent = agents.Agent(name="Caller", model=llm, tools=[tool])
    result = await agents.Runner.run(agent, "Do it.", auto_previous_response_id=chained)
    assert result.final_output == "Done."
    assert asked == [("echo", '{"text": "careful"}')]
    assert mcp.calls == [("echo", {"text": "careful"})]
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("chained", [False, True])
async def test_a_call_that_the_callback_denies_never_runs_and_the_model_hears_why(
    llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer, chained: bool
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "no"})]), Reply(text="I will not."))
    tool = _hosted(mcp, lambda request: {"approve": False, "reason": "Too risky."}, require_approval="always")
    agent = agents.Agent(name="Caller", model=llm, tools=[tool])
    result = await agents.Runner.run(agent, "Do it.", auto_previous_response_id=chained)
    assert result.final_output == "I will not."
    assert mcp.calls == []
    assert "Too risky." in sent(model, 2)[-1]["content"]


async def test_a_run_is_interrupted_for_approval_and_resumed_from_its_state(
    llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    """Without a callback the run stops, and goes on later from what was saved as JSON."""
    model.script(Reply(calls=[Call("echo", {"text": "later"})]), Reply(text="Done."))
    agent = agents.Agent(name="Caller", model=llm, tools=[_hosted(mcp, require_approval="always")])
    stopped = await agents.Runner.run(agent, "Do it.")
    assert len(stopped.interruptions) == 1
    assert mcp.calls == []
    state = await agents.RunState.from_json(agent, stopped.to_state().to_json())
    state.approve(state.get_interruptions()[0])
    result = await agents.Runner.run(agent, state)
    assert result.final_output == "Done."
    assert mcp.calls == [("echo", {"text": "later"})]


async def test_in_a_filter_a_named_tool_runs_and_another_asks(
    llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "a"}), Call("structured", {})]), Reply(text="Both done."))
    asked: list[str] = []

    def approve(request: Any) -> dict[str, Any]:
        asked.append(request.data.name)
        return {"approve": True}

    tool = _hosted(mcp, approve, require_approval={"never": {"tool_names": ["echo"]}})
    result = await agents.Runner.run(agents.Agent(name="Caller", model=llm, tools=[tool]), "Both.")
    assert result.final_output == "Both done."
    assert asked == ["structured"]
    assert [name for name, _ in mcp.calls] == ["echo", "structured"]


async def test_a_failing_tool_does_not_end_the_run(llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    model.script(Reply(calls=[Call("fail", {})]), Reply(text="It failed."))
    tool = _hosted(mcp, require_approval="never")
    result = await agents.Runner.run(agents.Agent(name="Caller", model=llm, tools=[tool]), "Try.")
    assert result.final_output == "It failed."
    (call,) = [item.raw_item for item in result.new_items if getattr(item.raw_item, "type", "") == "mcp_call"]
    assert call.status == "failed"


async def test_a_turn_that_goes_on_from_the_whole_history_remembers_the_call(
    llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "hello"})]), Reply(text="Done."), Reply(text="Hello."))
    agent = agents.Agent(name="Caller", model=llm, tools=[_hosted(mcp, require_approval="never")])
    first = await agents.Runner.run(agent, "Say hello.")
    history = [*first.to_input_list(), {"role": "user", "content": "What did it say?"}]
    second = await agents.Runner.run(agent, history)
    assert second.final_output == "Hello."
    assert [message["role"] for message in sent(model, 3)] == ["user", "assistant", "tool", "assistant", "user"]


async def test_hosted_and_local_tools_work_in_one_run(llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    """The server runs its calls at once and leaves the others to the client."""

    @agents.function_tool  # type: ignore[untyped-decorator, unused-ignore]
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"Sunny in {city}."

    both = [Call("echo", {"text": "a"}), Call("get_weather", {"city": "Rome"})]
    model.script(Reply(calls=both), Reply(text="Sunny, it said a."))
    tools = [_hosted(mcp, require_approval="never"), get_weather]
    result = await agents.Runner.run(agents.Agent(name="Caller", model=llm, tools=tools), "Both.")
    assert result.final_output == "Sunny, it said a."
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool", "tool"]


async def test_the_web_search_tool_of_the_sdk_searches(llm: Any, model: ScriptedUpstream, web: FakeWeb) -> None:
    model.script(Reply(calls=[Call("web_search", {"query": "tea"})]), Reply(text="A drink【1】."))
    agent = agents.Agent(name="Searcher", model=llm, tools=[agents.WebSearchTool()])
    result = await agents.Runner.run(agent, "What is tea?")
    assert result.final_output == "A drink."
    assert _kinds(result) == ["web_search_call", "message"]
