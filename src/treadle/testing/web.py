"""A web host on loopback whose every page and search answer is decided by the test."""

from __future__ import annotations

import asyncio
import html
import json
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote

import msgspec
from aiohttp import web

from treadle.ports import SearchResult
from treadle.testing.gates import PATIENCE, Gate, Waitable
from treadle.testing.threads import InThread


class WebRequest(msgspec.Struct):
    """A request as it arrived. Header names are in small letters; `json` is None for a body that is none."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    json: Any
    disconnected: Gate
    """Opens when the client has gone before the answer was complete."""


class Scripted(msgspec.Struct):
    """An answer. `endless` repeats after `body` until the client goes; `held` delays `rest`, which follows `body`."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = {}
    endless: bytes = b""
    held: Waitable | None = None
    rest: bytes = b""


class FakeWeb(InThread):
    """Pages under paths of the test's choice, and the answers of SearXNG, Brave, Tavily, Exa and DuckDuckGo.

    Use it as an async context manager within a loop, or as a plain one to run it in a thread of its own. What has no
    page is 404. `results` is what all the search services find; `refuse_search` makes them fail instead.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.requests: list[WebRequest] = []
        self.results: list[SearchResult] = []
        self._pages: dict[str, Scripted] = {}
        self._refusal: Scripted | None = None
        self._tls = tls
        self._runner: web.ServerRunner | None = None

    @property
    def origin(self) -> str:
        """The base URL, without a final slash; also the address to give any of the search services."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def url(self, path: str, *, host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def page(
        self,
        path: str,
        body: str | bytes,
        type: str = "text/html; charset=utf-8",
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Puts a page under `path`, and gives its URL."""
        data = body.encode() if isinstance(body, str) else body
        return self._put(path, Scripted(data, status, {"content-type": type, **(headers or {})}))

    def redirect(self, path: str, to: str, *, status: int = 302) -> str:
        """Leads from `path` to `to`, which may be anywhere."""
        return self._put(path, Scripted(b"", status, {"location": to}))

    def endless(self, path: str, piece: bytes = b"x" * 65536, *, type: str = "text/plain") -> str:
        """A body that never ends."""
        return self._put(path, Scripted(b"", 200, {"content-type": type}, endless=piece))

    def slow(self, path: str, first: bytes, gate: Waitable, rest: bytes = b"", *, type: str = "text/plain") -> str:
        """A body that stops after `first` until `gate` opens."""
        return self._put(path, Scripted(first, 200, {"content-type": type}, held=gate, rest=rest))

    def refuse_search(self, status: int, body: str | bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """All search services answer like this from now on."""
        self._refusal = Scripted(body.encode() if isinstance(body, str) else body, status, dict(headers or {}))

    def _put(self, path: str, scripted: Scripted) -> str:
        self._pages[path] = scripted
        return self.url(path)

    async def __aenter__(self) -> Self:
        server = web.Server(self._answer, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0)
        assert self._runner is not None
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls)
        await site.start()
        self.port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        async with asyncio.timeout(PATIENCE):
            await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        try:
            decoded = json.loads(body) if body else None
        except ValueError:
            decoded = None
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = WebRequest(request.method, request.path, dict(request.query), headers, body, decoded, Gate())
        self.requests.append(seen)
        scripted = self._pages.get(request.path) or self._search_answer(seen)
        response = web.StreamResponse(status=scripted.status, headers=scripted.headers)
        if not scripted.endless and scripted.held is None:
            response.content_length = len(scripted.body)
        try:
            await response.prepare(request)
            if scripted.body:
                await response.write(scripted.body)
            if scripted.held is not None:
                await scripted.held.wait()
                await response.write(scripted.rest)
            while scripted.endless:
                await response.write(scripted.endless)
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            seen.disconnected.set()
            raise
        return response

    def _search_answer(self, request: WebRequest) -> Scripted:
        path, bodies = request.path, request.json if isinstance(request.json, dict) else {}
        answer: object
        if path == "/search" and request.method == "GET":
            answer = {"query": request.query.get("q"), "results": _named("content", self.results)}
        elif path == "/search" and "numResults" in bodies:
            answer = {"requestId": "r", "results": _named("text", self.results)}
        elif path == "/search":
            answer = {"query": bodies.get("query"), "results": _named("content", self.results)}
        elif path == "/res/v1/web/search":
            answer = {"type": "search", "web": {"type": "search", "results": _named("description", self.results)}}
        elif path == "/html/":
            answer = None
        else:
            return Scripted(b"Not here.", 404, {"content-type": "text/plain"})
        if self._refusal is not None:
            return self._refusal
        if answer is None:
            return Scripted(_duck_page(self.results).encode(), headers={"content-type": "text/html"})
        return Scripted(json.dumps(answer).encode(), headers={"content-type": "application/json"})


def _named(field: str, results: Sequence[SearchResult]) -> list[dict[str, str]]:
    return [{"url": result.url, "title": result.title, field: result.text} for result in results]


def _duck_page(results: Sequence[SearchResult]) -> str:
    """Results as that page shows them, after an advertisement."""
    ad = "https://duckduckgo.com/y.js?ad_domain=ad.example"
    named = f'<h2><a class="result__a" href="{ad}">Buy</a></h2>'
    blocks = [f'<div class="result result--ad">{named}<a class="result__snippet" href="{ad}">An ad.</a></div>']
    for result in results:
        to = f"//duckduckgo.com/l/?uddg={quote(result.url, safe='')}&amp;rut=0"
        blocks.append(
            f'<div class="result"><h2 class="result__title"><a rel="nofollow" class="result__a" href="{to}">'
            f"{html.escape(result.title)}</a></h2>"
            f'<a class="result__snippet" href="{to}">{html.escape(result.text)}</a></div>'
        )
    empty = '<div class="no-results">No results.</div>' if not results else ""
    return f"<!DOCTYPE html><html><body><div id='links'>{''.join(blocks)}{empty}</div></body></html>"
