"""What tests of background responses share: making them, waiting for their outcome, reading and resuming streams."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

from tests.behaviour.conftest import Driver
from treadle.testing.frames import parse_sse
from treadle.testing.sequence import check_sequence

RUNNING = ("queued", "in_progress")


def begin(api: Driver, **body: Any) -> dict[str, Any]:
    """The queued response, as its creation answers."""
    response = api.create(background=True, **body)
    assert (response["status"], response["background"], response["output"]) == ("queued", True, [])
    return response


def outcome(api: Driver, response_id: str, *, seconds: float = 15) -> dict[str, Any]:
    """The response once it has ended, polled as clients do."""
    until = monotonic() + seconds
    while True:
        reply = api.get(f"/responses/{response_id}")
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        if found["status"] not in RUNNING:
            return found
        assert monotonic() < until, f"still {found['status']} after {seconds} s"
        sleep(0.01)


def cancel(api: Driver, response_id: str) -> Any:
    return api.http.post(f"{api.server.url}/responses/{response_id}/cancel")


def resumed(api: Driver, response_id: str, after: int | None = None) -> bytes:
    """The rest of a stream, as it was sent."""
    where = f"/responses/{response_id}?stream=true" + ("" if after is None else f"&starting_after={after}")
    reply = api.get(where)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    content: bytes = reply.content
    return content


def checked(content: bytes, *, first: int = 0) -> list[dict[str, Any]]:
    events = parse_sse(content)
    check_sequence(events, first=first)
    return events


def frames(content: bytes) -> list[bytes]:
    """The frames of events, without comments and the end mark."""
    found = [frame + b"\n\n" for frame in content.split(b"\n\n") if frame.startswith(b"event: ")]
    assert content.endswith(b"data: [DONE]\n\n")
    return found
