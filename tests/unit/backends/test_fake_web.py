"""The web host of the testing kit, where the other tests do not show it: in a thread, and what it records."""

from __future__ import annotations

import asyncio

import aiohttp

from treadle.ports import SearchResult
from treadle.testing.gates import Gate
from treadle.testing.web import FakeWeb


async def test_it_runs_in_a_thread_and_records_what_came() -> None:
    with FakeWeb() as web:
        web.results = [SearchResult("https://a.example/", "A", "a")]
        gate = Gate()
        url = web.slow("/slow", b"first ", gate, b"rest")
        async with asyncio.timeout(20), aiohttp.ClientSession() as session:
            async with session.post(web.origin + "/search", json={"query": "x"}, headers={"X-Mine": "1"}) as answer:
                assert (await answer.json())["results"] == [{"url": "https://a.example/", "title": "A", "content": "a"}]
            async with session.get(url) as answer:
                assert await answer.content.readexactly(6) == b"first "
                gate.set()
                assert await answer.content.read() == b"rest"
            async with session.get(web.url("/nothing")) as answer:
                assert answer.status == 404
        first = web.requests[0]
        assert (first.method, first.path, first.json, first.headers["x-mine"]) == (
            "POST",
            "/search",
            {"query": "x"},
            "1",
        )
        assert [request.path for request in web.requests] == ["/search", "/slow", "/nothing"]
        assert not first.disconnected.is_set()
