"""The official Python client in strict mode on tools that the server runs: MCP, approvals, web search."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.conftest import MODEL
from treadle.testing.mcp import UNAUTHORIZED, FakeMcpServer
from treadle.testing.server import RunningServer
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream
from treadle.testing.web import FakeWeb

ECHO = Reply(calls=[Call("echo", {"text": "hello"})])


@pytest.fixture
def server(server_with_tools: RunningServer) -> RunningServer:
    return server_with_tools


def _hosted(mcp: FakeMcpServer, **extra: Any) -> Any:
    return {"type": "mcp", "server_label": "fake", "server_url": mcp.url, **extra}


def test_a_call_and_the_list_of_tools_pass_the_types(client: Any, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    model.script(ECHO, Reply(text="It said hello."))
    made = client.responses.create(model=MODEL, input="Say hello.", tools=[_hosted(mcp)])
    listed, called, message = made.output
    assert (listed.type, listed.error) == ("mcp_list_tools", None)
    assert {tool.name for tool in listed.tools} == set(mcp.tools)
    assert (called.type, called.status, called.error) == ("mcp_call", "completed", None)
    assert (called.name, called.server_label, called.output) == ("echo", "fake", "hello")
    assert message.content[0].text == made.output_text == "It said hello."
    assert client.responses.retrieve(made.id) == made
    assert made.tools[0].type == "mcp"


def test_a_failed_call_has_an_error_that_the_types_know(
    client: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(Reply(calls=[Call("fail", {}), Call("crash", {})]), Reply(text="Both failed."))
    made = client.responses.create(model=MODEL, input="Try.", tools=[_hosted(mcp)])
    failed, crashed = (item for item in made.output if item.type == "mcp_call")
    assert (failed.status, crashed.status) == ("failed", "failed")
    assert failed.error.type == "mcp_tool_execution_error"
    assert crashed.error.type == "mcp_protocol_error"
    assert made.output_text == "Both failed."


def test_a_server_that_wants_credentials_is_an_error_in_its_item(
    client: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    mcp.troubles.append(UNAUTHORIZED)
    model.script(Reply(text="I have no tools."))
    made = client.responses.create(model=MODEL, input="Try.", tools=[_hosted(mcp)])
    assert "fake" in made.output[0].error
    assert made.output[0].tools == []
    assert made.output_text == "I have no tools."


@pytest.mark.parametrize("approve", [True, False])
def test_an_approval_passes_the_types(client: Any, model: ScriptedUpstream, mcp: FakeMcpServer, approve: bool) -> None:
    model.script(ECHO, Reply(text="As you say."))
    tools = [_hosted(mcp, require_approval="always")]
    asked = client.responses.create(model=MODEL, input="Say hello.", tools=tools)
    request = asked.output[-1]
    assert (request.type, request.name, request.arguments) == ("mcp_approval_request", "echo", '{"text": "hello"}')
    answer = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve, "reason": "So."}
    made = client.responses.create(model=MODEL, input=[answer], previous_response_id=asked.id, tools=tools)
    assert made.output_text == "As you say."
    calls = [item for item in made.output if item.type == "mcp_call"]
    assert [call.approval_request_id for call in calls] == ([request.id] if approve else [])
    assert len(mcp.calls) == approve
    (stored, *_) = client.responses.input_items.list(made.id).data
    assert (stored.type, stored.approve, stored.reason) == ("mcp_approval_response", approve, "So.")


def test_every_event_of_a_call_passes_the_types(client: Any, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "hello"}), Call("fail", {})]), Reply(text="One of two."))
    events = list(client.responses.create(model=MODEL, input="Go.", tools=[_hosted(mcp)], stream=True))
    ours = {event.type for event in events if "mcp" in event.type}
    assert ours == {
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.mcp_call.failed",
    }
    assert all(type(event).__name__.startswith("ResponseMcp") for event in events if "mcp" in event.type)
    assert client.responses.retrieve(events[-1].response.id) == events[-1].response


def test_a_list_that_fails_has_its_own_event(client: Any, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    mcp.troubles.append(UNAUTHORIZED)
    model.script(Reply(text="No tools."))
    events = list(client.responses.create(model=MODEL, input="Go.", tools=[_hosted(mcp)], stream=True))
    assert [event.type for event in events if "mcp" in event.type] == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.failed",
    ]


def test_the_stream_helper_goes_through_calls_and_approvals(
    client: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    """The helper keeps a copy of the response that every event must fit."""
    model.script(
        Reply(text="I look.", calls=[Call("echo", {"text": "a"}), Call("structured", {})]),
        Reply(text="Both done."),
    )
    tools = [_hosted(mcp, require_approval={"never": {"tool_names": ["echo"]}})]
    with client.responses.stream(model=MODEL, input="Both.", tools=tools) as stream:
        asked = stream.get_final_response()
    assert [item.type for item in asked.output] == ["mcp_list_tools", "message", "mcp_call", "mcp_approval_request"]
    answer = {"type": "mcp_approval_response", "approval_request_id": asked.output[-1].id, "approve": True}
    with client.responses.stream(model=MODEL, input=[answer], previous_response_id=asked.id, tools=tools) as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["mcp_call", "message"]
    assert final.output_text == "Both done."


def test_what_a_turn_put_out_can_be_sent_back_as_input(
    client: Any, model: ScriptedUpstream, mcp: FakeMcpServer
) -> None:
    model.script(ECHO, Reply(text="It said hello."), Reply(text="Hello."))
    first = client.responses.create(model=MODEL, input="Say hello.", tools=[_hosted(mcp)], store=False)
    again = [item.model_dump(exclude_none=True) for item in first.output]
    history = [{"role": "user", "content": "Say hello."}, *again, {"role": "user", "content": "What did it say?"}]
    second = client.responses.create(model=MODEL, input=history, tools=[_hosted(mcp)], store=False)
    assert second.output_text == "Hello."
    assert [message["role"] for message in model.requests[2].body["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "web_search_2025_08_26"])
def test_a_search_and_its_citations_pass_the_types(client: Any, model: ScriptedUpstream, kind: str) -> None:
    model.script(Reply(calls=[Call("web_search", {"query": "tea"})]), Reply(text="A drink【1】."))
    include = ["web_search_call.action.sources"]
    made = client.responses.create(model=MODEL, input="Tea?", tools=[{"type": kind}], include=include)
    search, message = made.output
    assert (search.type, search.status, search.action.type) == ("web_search_call", "completed", "search")
    assert [source.url for source in search.action.sources] == ["https://docs.example.org/tea"]
    (citation,) = message.content[0].annotations
    assert (citation.type, citation.url) == ("url_citation", "https://docs.example.org/tea")
    assert made.output_text == "A drink."


def test_the_stream_helper_goes_through_a_search_and_pages(client: Any, model: ScriptedUpstream, web: FakeWeb) -> None:
    url = web.page("/tea", "<title>Tea</title><p>Tea comes from Assam.</p>")
    model.script(
        Reply(calls=[Call("web_search", {"query": "tea"})]),
        Reply(calls=[Call("open_page", {"url": url})]),
        Reply(calls=[Call("find_in_page", {"url": url, "pattern": "Assam"})]),
        Reply(text="From Assam【1】."),
    )
    with client.responses.stream(model=MODEL, input="Tea?", tools=[{"type": "web_search"}]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert kinds >= {
        "response.web_search_call.in_progress",
        "response.web_search_call.searching",
        "response.web_search_call.completed",
        "response.output_text.annotation.added",
    }
    assert [item.action.type for item in final.output[:3]] == ["search", "open_page", "find_in_page"]
    assert final.output_text == "From Assam."
