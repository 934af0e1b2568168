"""Real clients against the real server: the fixtures of the behaviour tests, and the official client in async form."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.conftest import api, client, model, server
from treadle.ports import SearchResult
from treadle.testing.mcp import FakeMcpServer
from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import ScriptedUpstream
from treadle.testing.web import FakeWeb

__all__ = ["api", "client", "model", "server"]


@pytest.fixture
async def async_client(server: RunningServer) -> AsyncIterator[Any]:
    """The official async client, in its strict mode and without retries."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(
        base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as found:
        yield found


@pytest.fixture
def mcp() -> Iterator[FakeMcpServer]:
    with FakeMcpServer() as fake:
        yield fake


@pytest.fixture
def web() -> Iterator[FakeWeb]:
    """A web host with a search service that always finds one page."""
    with FakeWeb() as host:
        host.results = [SearchResult("https://docs.example.org/tea", "All about tea", "Tea is a drink.")]
        yield host


@pytest.fixture
def server_with_tools(tmp_path: Path, model: ScriptedUpstream, web: FakeWeb) -> Iterator[RunningServer]:
    """A server that may use tools of servers on this machine, and search."""
    extra = (f"web_search: {{kind: searxng, url: '{web.origin}'}}", "outgoing: {allow: [127.0.0.1]}")
    with RunningServer(settings_for(tmp_path, model.url, *extra)) as running:
        yield running
