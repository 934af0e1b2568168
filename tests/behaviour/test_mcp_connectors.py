"""Connectors: MCP servers from the configuration, by address or by command, and the endpoints that show them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import Driver, sent, text_of
from tests.behaviour.kit import error, final, serving
from tests.behaviour.manifest import behaviour
from tests.behaviour.mcp_kit import calls, listed, outputs
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.upstream import Call, Reply, ScriptedUpstream

STDIO_SERVER = """
import os, sys
import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

async def listing(context, params):
    schema = {"type": "object", "properties": {}}
    return types.ListToolsResult(tools=[types.Tool(name="who", description="Says who.", input_schema=schema)])

async def call(context, params):
    said = "{} {}".format(os.environ.get("GREETING"), "OPENAI_API_KEY" in os.environ)
    return types.CallToolResult(content=[types.TextContent(text=said)])

async def main():
    server = Server("pipes", version="1", on_list_tools=listing, on_call_tool=call)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())

anyio.run(main)
"""

PATHS = ["/v1alpha/admin/connectors", "/v1beta/connectors"]


@contextmanager
def connected(data: Path, model: ScriptedUpstream, url: str, *more: str) -> Iterator[Driver]:
    """A driver for a server with a connector `mcp::fake`, whose address callers could not name themselves."""
    lines = ["connectors:", f"  - {{connector_id: 'mcp::fake', url: '{url}', description: A fake.{_rest(more)}}}"]
    with serving(data, model, *lines) as api:
        yield api


def _rest(more: tuple[str, ...]) -> str:
    return "".join(f", {one}" for one in more)


def declared(connector: str = "mcp::fake", **more: Any) -> dict[str, Any]:
    return {"type": "mcp", "server_label": "mine", "connector_id": connector, **more}


def root(api: Driver, path: str, **query: str) -> Any:
    return api.http.get(api.server.root + path, params=query)


def test_a_connector_is_used_by_its_id(tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer) -> None:
    with connected(tmp_path, model, mcp.url) as api:
        model.script(Reply(calls=[Call("echo", {"text": "a"})]), Reply(text="Ok."))
        response = final(api.stream(input="Try.", tools=[declared()]))
        assert "echo" in listed(response)["mine"]
        assert calls(response)[0]["output"] == "a"
        assert response["tools"] == [declared()]
        # The operator trusts it, so the model is told its words as they are.
        assert outputs(sent(model, 2)) == ["a"]


@behaviour("also-unknown-connector")
@pytest.mark.parametrize("connector", ["mcp::other", "", "../x", "x" * 500])
def test_an_unknown_connector_is_refused(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer, connector: str
) -> None:
    with connected(tmp_path, model, mcp.url) as api:
        fault = error(api.post(input="Try.", tools=[declared(connector)]), 400)
        assert fault["param"] == "tools[0].connector_id"
        assert connector[:128] in fault["message"]
    assert mcp.requests == []


@pytest.mark.parametrize("more", [{"server_url": "http://127.0.0.1/mcp"}, {"connector_id": None}])
def test_a_server_is_named_in_one_way(
    tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer, more: dict[str, Any]
) -> None:
    with connected(tmp_path, model, mcp.url) as api:
        error(api.post(input="Try.", tools=[declared(**more)]), 400)
    assert mcp.requests == []


@behaviour("bug-58")
def test_stored_headers_stay_inside(tmp_path: Path, model: ScriptedUpstream) -> None:
    with (
        FakeMcpServer(token="s3cret-token") as fake,
        connected(
            tmp_path,
            model,
            fake.url + "?api_key=s3cret-query",
            "headers: {Authorization: Bearer s3cret-token, x-key: s3cret-header}",
        ) as api,
    ):
        model.script(Reply(calls=[Call("echo", {"text": "a"})]), Reply(text="Ok."))
        response = api.create(input="Try.", tools=[declared()])
        assert calls(response)[0]["output"] == "a"
        shown = [str(response), api.get(f"/responses/{response['id']}").text]
        for path in PATHS:
            shown += [root(api, path).text, root(api, f"{path}/mcp::fake").text]
            shown.append(root(api, f"{path}/mcp::fake/tools").text)
        assert "s3cret" not in "".join(shown)
        assert {request.headers["x-key"] for request in fake.requests} == {"s3cret-header"}
        assert {request.query for request in fake.requests} == {"api_key=s3cret-query"}


@behaviour("also-expired-token")
def test_a_requests_token_goes_before_the_stored_one(tmp_path: Path, model: ScriptedUpstream) -> None:
    with (
        FakeMcpServer(token="callers") as fake,
        connected(tmp_path, model, fake.url, "headers: {authorization: Bearer stored}") as api,
    ):
        model.script(Reply(calls=[Call("echo", {"text": "a"})]), Reply(text="Ok."), Reply(text="Not let in."))
        assert calls(api.create(input="Try.", tools=[declared(authorization="callers")]))[0]["output"] == "a"
        refused = api.create(input="Try.", tools=[declared()])
        assert "authentication" in refused["output"][0]["error"]
        for path in PATHS:
            fault = error(root(api, f"{path}/mcp::fake/tools"), 424)
            assert "authentication" in fault["message"]
            assert "stored" not in fault["message"]
            tools = root(api, f"{path}/mcp::fake/tools", authorization="callers").json()["data"]
            assert "echo" in [tool["name"] for tool in tools]


@pytest.mark.parametrize("path", PATHS)
def test_connectors_can_be_read(tmp_path: Path, model: ScriptedUpstream, mcp: FakeMcpServer, path: str) -> None:
    with connected(tmp_path, model, mcp.url, "server_label: faked") as api:
        (one,) = root(api, path).json()["data"]
        assert one == root(api, f"{path}/mcp::fake").json()
        assert one["connector_id"] == "mcp::fake"
        assert one["connector_type"] == "mcp"
        assert one["url"] == mcp.url
        assert one["server_label"] == "faked"
        tool = root(api, f"{path}/mcp::fake/tools/echo").json()
        assert tool["name"] == "echo"
        assert tool["input_schema"]["required"] == ["text"]
        for missing in ("mcp::other", "mcp::other/tools", "mcp::fake/tools/other"):
            error(root(api, f"{path}/{missing}"), 404)


@pytest.mark.parametrize("path", PATHS)
def test_without_connectors_the_list_is_empty(api: Driver, path: str) -> None:
    assert root(api, path).json()["data"] == []


def test_a_connector_that_is_down_says_so(tmp_path: Path, model: ScriptedUpstream) -> None:
    with connected(tmp_path, model, "http://127.0.0.1:9/mcp") as api:
        for path in PATHS:
            assert "mcp::fake" in error(root(api, f"{path}/mcp::fake/tools"), 424)["message"]
        model.script(Reply(text="Without."))
        assert text_of(api.create(input="Try.", tools=[declared()])) == "Without."


def test_a_connector_may_be_a_command_and_callers_cannot_name_one(tmp_path: Path, model: ScriptedUpstream) -> None:
    program = tmp_path / "server.py"
    program.write_text(STDIO_SERVER, encoding="utf-8")
    lines = [
        "connectors:",
        f"  - {{connector_id: pipes, command: ['{sys.executable}', '{program}'], env: {{GREETING: s3cret-hi}}}}",
    ]
    with serving(tmp_path, model, *lines) as api:
        model.script(Reply(calls=[Call("who")]), Reply(text="Ok."))
        response = final(api.stream(input="Who?", tools=[declared("pipes")]))
        assert listed(response) == {"mine": ["who"]}
        assert calls(response)[0]["output"] == "s3cret-hi False"
        for path in PATHS:
            assert "s3cret" not in root(api, f"{path}/pipes").text
            assert root(api, f"{path}/pipes/tools").json()["data"][0]["name"] == "who"
        for url in ("stdio:pipes", f"stdio:{sys.executable}"):
            tool = {"type": "mcp", "server_label": "x", "server_url": url}
            assert error(api.post(input="Who?", tools=[tool]), 400)["param"] == "tools[0].server_url"
