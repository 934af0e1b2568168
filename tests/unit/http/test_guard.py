"""The guard against web pages that use the server behind their visitor's back."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from treadle.http.guard import Guard


async def _status(guard_options: dict[str, Any], headers: dict[str, str]) -> int:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("the guard reads no body")

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await Guard(app, **guard_options)({"type": "http", "headers": raw}, receive, send)
    return int(sent[0]["status"])


_LOCAL: dict[str, Any] = {"hosts": (), "origins": ()}


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8321", "localhost:8321", "LOCALHOST", "[::1]:8321", "ui.localhost:8321", "treadle:8321", "192.168.1.5"],
)
async def test_this_machine_may_be_called_by_its_names(host: str) -> None:
    assert await _status(_LOCAL, {"host": host}) == 200


@pytest.mark.parametrize("host", ["evil.example:8321", "127.0.0.1.evil.example", "localhost.evil.example"])
async def test_a_name_that_was_made_to_point_here_is_refused(host: str) -> None:
    assert await _status(_LOCAL, {"host": host}) == 403


async def test_a_configured_name_is_known() -> None:
    options = {"hosts": ("agents.example",), "origins": ()}
    assert await _status(options, {"host": "agents.example:443"}) == 200
    assert await _status(options, {"host": "other.example"}) == 403


async def test_beyond_loopback_any_name_will_do() -> None:
    assert await _status({"hosts": None, "origins": ()}, {"host": "anything.example"}) == 200


async def test_a_page_of_another_origin_is_refused() -> None:
    assert await _status(_LOCAL, {"host": "127.0.0.1:8321", "origin": "https://evil.example"}) == 403
    assert await _status(_LOCAL, {"host": "127.0.0.1:8321", "origin": "null"}) == 403
    assert await _status(_LOCAL, {"host": "127.0.0.1:8321", "origin": "http://127.0.0.1:3000"}) == 403


async def test_our_own_pages_and_configured_ones_are_welcome() -> None:
    assert await _status(_LOCAL, {"host": "127.0.0.1:8321", "origin": "http://127.0.0.1:8321"}) == 200
    options = {"hosts": (), "origins": ("https://app.example",)}
    assert await _status(options, {"host": "127.0.0.1:8321", "origin": "https://app.example"}) == 200


async def test_programs_that_are_no_browsers_send_no_origin() -> None:
    assert await _status(_LOCAL, {}) == 200
