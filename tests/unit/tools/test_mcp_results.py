"""What comes back from servers of tools, whichever way they speak: lists, results, and failures that are results."""

from __future__ import annotations

import json

import pytest

from tests.unit.tools.conftest import fault, is_remote_tools, named, pool_of
from treadle.ports import ImagePart, TextPart
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.mcp_tools import ECHO_SCHEMA, PIXEL, FakeTool, Use, always, text
from treadle.tools.mcp.pool import McpPool


async def test_tools_are_listed_from_all_pages_with_their_schemas_as_they_are(
    fake: FakeMcpServer, pool: McpPool
) -> None:
    fake.page = 4
    tools = await is_remote_tools(pool).list_tools(named(fake))
    assert [tool.name for tool in tools] == list(fake.tools)
    assert fake.count("tools/list") == 4
    echo = tools[0]
    assert json.loads(bytes(echo.input_schema)) == ECHO_SCHEMA
    assert echo.description == "Says it again."
    assert echo.read_only
    assert json.loads(bytes(echo.annotations or b"")) == {"readOnlyHint": True}
    assert not tools[1].read_only
    assert tools[1].annotations is None


async def test_a_call_reaches_the_tool_with_its_arguments(fake: FakeMcpServer, pool: McpPool) -> None:
    result = await pool.call(named(fake), "echo", '{"text": "Grüße", "size": null, "places": [{"lat": 1.5}]}')
    assert result.parts == [TextPart("Grüße")]
    assert not result.failed
    assert fake.calls == [("echo", {"text": "Grüße", "size": None, "places": [{"lat": 1.5}]})]


@pytest.mark.parametrize(
    ("tool", "part"),
    [
        ("image", ImagePart(f"data:image/png;base64,{PIXEL}")),
        ("audio", TextPart("(audio, audio/wav, 6 bytes: it cannot be passed on)")),
        ("resource", TextPart("Buy milk.")),
        ("blob", TextPart("(resource file:///notes/today.txt, application/zip, 6 bytes: it cannot be passed on)")),
        ("link", TextPart("(link to the resource today, text/plain, at file:///notes/today.txt: The notes)")),
        ("nothing", TextPart("(no content)")),
        ("misfit", TextPart("run all the same")),
    ],
)
async def test_every_kind_of_content_is_passed_on_or_described(
    fake: FakeMcpServer, pool: McpPool, tool: str, part: object
) -> None:
    result = await pool.call(named(fake), tool, "{}")
    assert result.parts == [part]
    assert result.structured is None
    assert not result.failed


async def test_structured_content_alone_becomes_text(fake: FakeMcpServer, pool: McpPool) -> None:
    result = await pool.call(named(fake), "structured", "{}")
    assert result.structured is not None
    assert json.loads(bytes(result.structured)) == {"celsius": 21, "wind": ["w", 3]}
    assert result.parts == [TextPart(bytes(result.structured).decode())]


async def test_a_result_that_says_it_failed_is_a_result(fake: FakeMcpServer, pool: McpPool) -> None:
    result = await pool.call(named(fake), "fail", "{}")
    assert result.failed
    assert result.parts == [TextPart("no such city")]


async def test_a_json_rpc_error_names_server_code_and_message(fake: FakeMcpServer, pool: McpPool) -> None:
    told = await fault(pool.call(named(fake), "crash", "{}"))
    assert (told.kind, told.number) == ("protocol", -32603)
    assert told.message == "MCP server 'docs' answered with the error -32603: the tool fell over."
    told = await fault(pool.call(named(fake, label="other"), "no_such_tool", "{}"))
    assert (told.kind, told.number) == ("protocol", -32602)
    assert told.message.startswith("MCP server 'other' answered with the error -32602")


async def test_a_text_of_five_megabytes_comes_whole(fake: FakeMcpServer, pool: McpPool) -> None:
    (part,) = (await pool.call(named(fake), "big", '{"size": 5000000}')).parts
    assert part == TextPart("x" * 5_000_000)


async def test_an_answer_beyond_the_bound_is_refused_and_the_session_stays(fake: FakeMcpServer) -> None:
    async with pool_of(max_body=100_000) as pool:
        told = await fault(pool.call(named(fake), "big", '{"size": 5000000}'))
        if fake.speech != "sse":
            assert told.message == "MCP server 'docs' answered with more than 100000 bytes."
        assert (await pool.call(named(fake), "echo", '{"text": "still here"}')).parts == [TextPart("still here")]


@pytest.mark.parametrize("what", ["elicitation", "sampling", "roots"])
@pytest.mark.parametrize("speech", ["handshake", "sse"])
async def test_what_a_server_wants_from_us_is_refused_and_its_tool_goes_on(
    pool: McpPool, speech: str, what: str
) -> None:
    async with FakeMcpServer(speech) as fake:  # type: ignore[arg-type]
        (part,) = (await pool.call(named(fake), "ask", json.dumps({"what": what}))).parts
        assert isinstance(part, TextPart)
        assert part.text.startswith("refused: ")
        assert "not supported" in part.text


@pytest.mark.parametrize("what", ["elicitation", "sampling", "roots"])
async def test_a_call_that_ends_in_a_wish_for_input_is_a_fault_that_says_so(pool: McpPool, what: str) -> None:
    async with FakeMcpServer("modern") as fake:
        told = await fault(pool.call(named(fake), "ask", json.dumps({"what": what})))
        assert "input" in told.message
        assert "not supported" in told.message


async def test_answers_as_plain_json_do_as_well_as_event_streams(pool: McpPool) -> None:
    async with FakeMcpServer("handshake", json_answers=True) as fake:
        assert (await pool.call(named(fake), "echo", '{"text": "json"}')).parts == [TextPart("json")]
        (part,) = (await pool.call(named(fake), "big", '{"size": 3000000}')).parts
        assert isinstance(part, TextPart)
        assert len(part.text) == 3_000_000


async def test_arguments_that_must_stand_in_headers_are_learnt_from_the_list(pool: McpPool) -> None:
    async def run(use: Use):  # type: ignore[no-untyped-def]
        return text(f"{use.arguments['region']}")

    schema = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    tool = FakeTool("regional", run, schema=schema)
    async with FakeMcpServer("modern", tools=[tool]) as fake:
        # Nothing was listed before: the server turns the call away until the header is there.
        assert (await pool.call(named(fake), "regional", '{"region": "eu"}')).parts == [TextPart("eu")]
        assert [name for name, _ in fake.calls] == ["regional"]
        asked = [request for request in fake.requests if request.rpc == "tools/call"][-1]
        assert asked.headers["mcp-param-region"] == "eu"


async def test_a_list_without_end_is_refused(pool: McpPool) -> None:
    async with FakeMcpServer(tools=[always(f"tool_{number}", text("")) for number in range(1100)], page=1) as fake:
        told = await fault(pool.list_tools(named(fake)))
        assert told.message == "MCP server 'docs' lists its tools on pages without end."
