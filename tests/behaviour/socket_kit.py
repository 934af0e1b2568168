"""A WebSocket client for tests: everything it reads is checked for legal order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.behaviour.conftest import MODEL
from treadle.testing.sequence import check_sequence
from treadle.testing.server import RunningServer

SECONDS = 10.0
ENDS = ("response.completed", "response.incomplete", "response.failed")


class Socket:
    """One connection."""

    def __init__(self, raw: ClientConnection) -> None:
        self.raw = raw

    def ask(self, **body: Any) -> None:
        self.raw.send(json.dumps({"type": "response.create", "model": MODEL, **body}))

    def next(self) -> dict[str, Any]:
        """The next frame, which must be an event in a text frame."""
        text = self.raw.recv(timeout=SECONDS)
        assert isinstance(text, str)
        found: dict[str, Any] = json.loads(text)
        return found

    def until(self, kind: str) -> list[dict[str, Any]]:
        """The events up to and with the first of `kind`."""
        found = [self.next()]
        while found[-1]["type"] != kind:
            found.append(self.next())
        return found

    def events(self) -> list[dict[str, Any]]:
        """The events of a response, from the first to the last."""
        found = [self.next()]
        while found[-1]["type"] not in ENDS:
            assert found[-1]["type"] != "error" or "sequence_number" in found[-1], found[-1]
            found.append(self.next())
        check_sequence(found)
        return found

    def turn(self, **body: Any) -> dict[str, Any]:
        """The response to a request, as its last event has it."""
        self.ask(**body)
        found: dict[str, Any] = self.events()[-1]["response"]
        return found

    def error(self, status: int, **also: Any) -> dict[str, Any]:
        """The error of the next frame, which must be the event that refuses a request; `also` stands beside it."""
        found = self.next()
        error: dict[str, Any] = found["error"]
        assert found == {"type": "error", "status": status, "error": error, **also}, found
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str)
        return error

    def refused(self, status: int, **body: Any) -> dict[str, Any]:
        self.ask(**body)
        return self.error(status)

    def closed(self) -> int:
        """The code that the server closes with; nothing may come before."""
        with pytest.raises(ConnectionClosed) as end:
            self.raw.recv(timeout=SECONDS)
        assert end.value.rcvd is not None, "the connection was lost"
        return int(end.value.rcvd.code)

    def settled(self) -> None:
        """Returns once the server has read all that was sent."""
        assert self.raw.ping().wait(SECONDS)


@contextmanager
def opened(server: RunningServer, path: str = "/v1/responses", **options: Any) -> Iterator[Socket]:
    with connect(f"ws{server.root.removeprefix('http')}{path}", max_size=None, **options) as raw:
        yield Socket(raw)
