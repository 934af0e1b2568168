"""`treadle check` of what tools need: the composition, permitted addresses, the search service, connectors."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from treadle.app.trial import try_app
from treadle.cli.main import main
from treadle.ports import SearchResult
from treadle.settings import load
from treadle.testing.gates import Gate
from treadle.testing.mcp import UNAUTHORIZED, WEB_PAGE, FakeMcpServer
from treadle.testing.web import FakeWeb

PROGRAM = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("pipes")

@server.tool()
def echo(text: str) -> str:
    return text

server.run(transport="stdio")
"""


class Checked(NamedTuple):
    code: int
    ok: list[str]
    """What was found to be right, from the line about the store on."""
    errors: list[str]


class Check:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = folder / "c.yaml"
        self._capsys = capsys

    def __call__(self, *lines: str) -> Checked:
        self._file.write_text("\n".join(lines) + "\n")
        code = main(["check", "--config", str(self._file)])
        out, err = self._capsys.readouterr()
        return Checked(code, out.splitlines()[3:], err.splitlines())


@pytest.fixture
def check(bare: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    return Check(bare, capsys)


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    with FakeWeb() as fake:
        yield fake


@pytest.fixture
def mcp() -> Iterator[FakeMcpServer]:
    with FakeMcpServer() as fake:
        yield fake


@pytest.fixture
def gone() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}"


def test_what_is_permitted_is_said(check: Check) -> None:
    found = check("outgoing: {allow: [10.0.0.0/8, '*.corp.example', '127.0.0.1:8080', localhost, nas.invalid]}")
    admitted = "admits 10.0.0.0/8, *.corp.example, 127.0.0.1:8080, localhost, nas.invalid"
    assert found == Checked(0, [f"ok     outgoing.allow: {admitted}; no address is known of nas.invalid"], [])


def test_each_bad_entry_is_a_fault_of_its_own(check: Check) -> None:
    code, ok, errors = check("outgoing:", "  allow: [10.0.0.0/8, 'http://nas.lan/', 10.0.0.0/99]")
    assert (code, ok) == (1, [])
    says = "is neither a host, a *.domain, an address nor a network such as 192.168.1.0/24."
    assert errors == [
        f"error: outgoing.allow: 'http://nas.lan/' {says} (file c.yaml:2)",
        f"error: outgoing.allow: '10.0.0.0/99' {says} (file c.yaml:2)",
    ]


def test_a_part_that_cannot_be_made_is_a_fault(check: Check, bare: Path) -> None:
    (bare / "data").mkdir()
    (bare / "data" / "secret.key").write_bytes(b"short")
    assert check("log_level: info").errors == [f"error: app: {bare}/data/secret.key must hold exactly 32 bytes"]


@pytest.mark.parametrize("kind", ["searxng", "brave", "tavily", "exa", "duckduckgo"])
def test_the_search_service_is_asked_once(check: Check, web: FakeWeb, kind: str) -> None:
    web.results = [SearchResult(url="https://weather.example/", title="Rain", text="All day.")]
    found = check(f"web_search: {{kind: {kind}, url: '{web.origin}', key: sk}}")
    assert found == Checked(0, [f"ok     web_search: {kind} answers a search"], [])
    assert len(web.requests) == 1


def test_a_search_service_that_finds_nothing_still_answers(check: Check, web: FakeWeb) -> None:
    found = check(f"web_search: {{kind: searxng, url: '{web.origin}'}}")
    assert found.ok == ["ok     web_search: searxng answers, but finds nothing for 'weather'"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("kind: searxng", "web_search.url: is needed: the address of the SearXNG server."),
        ("kind: brave", "web_search.key: is needed: the key for Brave."),
        ("kind: exa, key: ключ", "web_search.key: contains characters that no key has. (file c.yaml:1)"),
        ("kind: searxng, url: nowhere", "web_search.url: must be an address such as"),
        ("kind: google", "web_search.kind: must be one of empty, `searxng`"),
    ],
)
def test_a_search_service_without_what_it_needs_is_a_fault(check: Check, given: str, says: str) -> None:
    code, _, (error,) = check(f"web_search: {{{given}}}")
    assert code == 1
    assert error.startswith(f"error: {says}")


@pytest.mark.parametrize(
    ("status", "body", "path", "says"),
    [
        (401, b"", "web_search.key", "does not accept the key"),
        (200, b"<html>", "web_search.url", "sent an HTML page instead of JSON"),
        (500, b"", "web_search", "failed (500)"),
        (429, b"", "web_search", "is at its limit"),
    ],
)
def test_a_search_service_that_refuses_is_named_with_the_cause(
    check: Check, web: FakeWeb, status: int, body: bytes, path: str, says: str
) -> None:
    web.refuse_search(status, body)
    code, ok, (error,) = check(f"web_search: {{kind: tavily, url: '{web.origin}', key: sk-hush}}")
    assert (code, ok) == (1, [])
    assert error.startswith(f"error: {path}: The search service Tavily ")
    assert says in error
    assert error.endswith("(file c.yaml:1)")
    assert "hush" not in error


def test_a_search_service_that_is_not_there_is_a_fault(check: Check, gone: str) -> None:
    assert check(f"web_search: {{kind: searxng, url: '{gone}'}}").errors == [
        "error: web_search.url: The search service SearXNG cannot be reached. (file c.yaml:1)"
    ]


async def test_a_search_service_that_does_not_answer_is_given_up(bare: Path) -> None:
    async with FakeWeb() as web:
        gate = Gate()
        web.slow("/search", b"", gate)
        (bare / "c.yaml").write_text(f"web_search: {{kind: searxng, url: '{web.origin}'}}\n")
        (trial,) = await try_app(load("c.yaml").require(), search_seconds=0.1)
        assert (trial.path, trial.text, trial.wrong) == ("web_search.url", "searxng did not answer within 0.1 s", True)
        await web.requests[0].disconnected.wait()


def test_every_connector_lists_its_tools_once(check: Check, mcp: FakeMcpServer, bare: Path) -> None:
    (bare / "server.py").write_text(PROGRAM)
    found = check(
        "connectors:",
        f"  - {{connector_id: web, url: '{mcp.url}', headers: {{X-Team: red}}}}",
        f"  - {{connector_id: pipes, command: ['{sys.executable}', server.py]}}",
    )
    assert found == Checked(
        0,
        [
            f"ok     connectors[0]: web answers and offers {len(mcp.tools)} tools",
            "ok     connectors[1]: pipes answers and offers 1 tool",
        ],
        [],
    )
    assert mcp.count("tools/list") == 1
    assert mcp.requests[0].headers["x-team"] == "red"


def test_what_is_wrong_with_a_connector_is_said_with_its_name_and_cause(
    check: Check, mcp: FakeMcpServer, gone: str
) -> None:
    with FakeMcpServer(token="s3cret") as locked:
        mcp.troubles.append(WEB_PAGE)
        code, ok, errors = check(
            "connectors:",
            f"  - {{connector_id: gone, url: '{gone}/mcp'}}",
            f"  - {{connector_id: page, url: '{mcp.url}'}}",
            f"  - {{connector_id: locked, url: '{locked.url}', headers: {{Authorization: Bearer wrong-hush}}}}",
            "  - {connector_id: typo, command: [no-such-program-here]}",
            "  - {connector_id: empty}",
            "  - {connector_id: empty}",
        )
    assert (code, ok) == (1, [])
    starts = [
        "connectors[4].connector_id: `empty` is the name of more than one connector",
        "connectors[0].url: MCP server 'gone' ",
        "connectors[1].url: MCP server 'page' ",
        "connectors[2].headers: MCP server 'locked' needs authentication and rejected",
        "connectors[3].command: MCP server 'typo' ",
        "connectors[4]: `empty` has neither `url` nor `command`",
        "connectors[5]: `empty` has neither `url` nor `command`",
    ]
    assert len(errors) == len(starts)
    for error, start in zip(errors, starts, strict=True):
        assert error.startswith(f"error: {start}")
        assert error.endswith("(file c.yaml:2)")
        assert "hush" not in error


def test_a_connector_whose_credentials_come_with_the_request_is_no_fault(check: Check, mcp: FakeMcpServer) -> None:
    mcp.troubles.append(UNAUTHORIZED)
    code, (line,), errors = check(f"connectors: [{{connector_id: mine, url: '{mcp.url}'}}]")
    assert (code, errors) == (0, [])
    assert line.startswith("ok     connectors[0]: MCP server 'mine' needs authentication")
    assert line.endswith("Requests have to bring an `authorization`.")
