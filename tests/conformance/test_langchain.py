"""LangChain's ChatOpenAI over the Responses API, by itself and inside a LangGraph agent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, sent
from treadle.testing.server import RunningServer
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="langchain-openai is not installed; it comes with the dev extra"
)


def _llm(server: RunningServer, **options: Any) -> Any:
    return langchain_openai.ChatOpenAI(
        model=MODEL, base_url=server.url, api_key="none", max_retries=0, use_responses_api=True, **options
    )


def _weather_tool(asked: list[str]) -> Any:
    from langchain_core.tools import tool

    @tool
    def get_weather(city: str) -> str:
        """The weather in a city."""
        asked.append(city)
        return f"Sunny in {city}."

    return get_weather


@pytest.fixture(autouse=True)
def no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANGSMITH_TRACING", "false")


def test_invoke_returns_text_and_usage(server: RunningServer, model: ScriptedUpstream) -> None:
    model.script(Reply(text="Hello."))
    found = _llm(server).invoke("Say hello.")
    assert found.text == "Hello."
    assert found.usage_metadata["total_tokens"] == 15
    assert found.response_metadata["id"].startswith("resp_")


def test_bound_tools_are_called_and_answered(server: RunningServer, model: ScriptedUpstream) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    model.script(Reply(reasoning="Look.", calls=[Call("get_weather", {"city": "Rome"})]), Reply(text="Sunny."))
    llm = _llm(server).bind_tools([_weather_tool([])])
    question = HumanMessage("Weather in Rome?")
    first = llm.invoke([question])
    (call,) = first.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome"})
    second = llm.invoke([question, first, ToolMessage("sunny", tool_call_id=call["id"])])
    assert second.text == "Sunny."
    assert [message["role"] for message in sent(model, 2)] == ["user", "assistant", "tool"]


def test_a_stream_adds_up_to_the_answer(server: RunningServer, model: ScriptedUpstream) -> None:
    model.script(Reply(reasoning="Hm.", text="One two three."))
    chunks = list(_llm(server).stream("Count."))
    assert len(chunks) > 3
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert whole.text == "One two three."
    assert whole.usage_metadata["total_tokens"] == 15


def test_a_streamed_tool_call_adds_up(server: RunningServer, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("get_weather", {"city": "Rome"}), Call("get_weather", {"city": "Oslo"})]))
    chunks = list(_llm(server).bind_tools([_weather_tool([])]).stream("Weather?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [{"city": "Rome"}, {"city": "Oslo"}]


def test_structured_output_is_parsed(server: RunningServer, model: ScriptedUpstream) -> None:
    from tests.conformance.test_openai_sdk import Answer

    model.script(Reply(text='{"number": 4, "reason": "sum"}'))
    llm = _llm(server).with_structured_output(Answer, method="json_schema")
    assert llm.invoke("2+2?") == Answer(number=4, reason="sum")


def test_turns_chain_by_previous_response_id(server: RunningServer, model: ScriptedUpstream) -> None:
    """With the option on, the client sends only what is new."""
    from langchain_core.messages import HumanMessage

    model.script(Reply(text="Hello Alice."), Reply(text="Alice."))
    llm = _llm(server, use_previous_response_id=True)
    first = llm.invoke([HumanMessage("I am Alice.")])
    second = llm.invoke([HumanMessage("I am Alice."), first, HumanMessage("Who am I?")])
    assert second.text == "Alice."
    assert [message["content"] for message in sent(model, 2)] == ["I am Alice.", "Hello Alice.", "Who am I?"]


@pytest.mark.parametrize("chained", [False, True])
async def test_a_langgraph_agent_runs_its_tool_loop(
    server: RunningServer, model: ScriptedUpstream, chained: bool
) -> None:
    pytest.importorskip("langgraph", reason="langgraph is not installed; it comes with the dev extra")
    from langchain_core.messages import HumanMessage
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    model.script(
        Reply(calls=[Call("get_weather", {"city": "Rome"})]),
        Reply(text="And Oslo.", calls=[Call("get_weather", {"city": "Oslo"})]),
        Reply(text="Sunny in both."),
    )
    asked: list[str] = []
    tools = [_weather_tool(asked)]
    llm = _llm(server, use_previous_response_id=chained).bind_tools(tools)

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    question = HumanMessage("Weather in Rome and Oslo?")
    state = await graph.compile().ainvoke(MessagesState(messages=[question]))
    assert state["messages"][-1].text == "Sunny in both."
    assert asked == ["Rome", "Oslo"]
    assert [message["role"] for message in sent(model, 3)] == ["user", "assistant", "tool", "assistant", "tool"]
