"""LangChain's ChatOpenAI with tools that the server runs: a hosted MCP server, approvals, web search."""

from __future__ import annotations

from typing import Any

import pytest

from tests.behaviour.conftest import MODEL, sent
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.server import RunningServer
from treadle.testing.turns import Call, Reply
from treadle.testing.upstream import ScriptedUpstream

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="langchain-openai is not installed; it comes with the dev extra"
)


@pytest.fixture
def llm(server_with_tools: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    return langchain_openai.ChatOpenAI(
        model=MODEL, base_url=server_with_tools.url, api_key="none", max_retries=0, use_responses_api=True
    )


def _hosted(mcp: FakeMcpServer, **extra: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "fake", "server_url": mcp.url, **extra}


@pytest.mark.parametrize("streamed", [False, True])
def test_a_hosted_mcp_tool_is_used(llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer, streamed: bool) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "hello"})]), Reply(text="It said hello."))
    bound = llm.bind_tools([_hosted(mcp, require_approval="never")])
    if streamed:
        first, *rest = bound.stream("Say hello.")
        found = sum(rest, first)
    else:
        found = bound.invoke("Say hello.")
    assert found.text == "It said hello."
    assert mcp.calls == [("echo", {"text": "hello"})]


def test_an_approval_is_asked_for_and_given(llm: Any, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    model.script(Reply(calls=[Call("echo", {"text": "careful"})]), Reply(text="Done."))
    bound = llm.bind_tools([_hosted(mcp, require_approval="always")])
    asked = bound.invoke("Do it.")
    (request,) = [block for block in asked.content if block["type"] == "mcp_approval_request"]
    assert mcp.calls == []
    answer = {"type": "mcp_approval_response", "approve": True, "approval_request_id": request["id"]}
    done = bound.invoke([{"role": "user", "content": [answer]}], previous_response_id=asked.response_metadata["id"])
    assert done.text == "Done."
    assert mcp.calls == [("echo", {"text": "careful"})]


def test_a_search_is_made_and_cited(llm: Any, model: ScriptedUpstream) -> None:
    model.script(Reply(calls=[Call("web_search", {"query": "tea"})]), Reply(text="A drink【1】."), Reply(text="Yes."))
    bound = llm.bind_tools([{"type": "web_search"}])
    found = bound.invoke("Tea?")
    assert found.text == "A drink."
    (block,) = [block for block in found.content if block["type"] == "text"]
    assert block["annotations"][0]["url"] == "https://docs.example.org/tea"
    again = bound.invoke([("user", "Tea?"), found, ("user", "Sure?")])
    assert again.text == "Yes."
    # The search comes back without its results, which the client never saw; the model sees what the store has.
    told = sent(model, 3)
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "assistant", "user"]
    assert told[:3] == sent(model, 2)
