"""Uploads that do not arrive: nothing of them is there afterwards, and nobody else is held up meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.behaviour.conftest import Driver, httpx2
from tests.behaviour.kit import serving
from tests.behaviour.test_crash import process
from treadle.testing.server import settings_for
from treadle.testing.upstream import ScriptedUpstream

HEAD = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
)
PIECE = bytes(1_000_000)


def files(folder: Path) -> list[Path]:
    return [path for path in (folder / "blobs").rglob("*") if path.is_file()]


def begin(url: str, size: int) -> socket.socket:
    """A connection on which an upload has begun, `size` bytes of its file included."""
    parts = urlsplit(url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)
    connection.sendall(
        b"POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        b"Content-Length: 500000000\r\n\r\n" + HEAD + bytes(size)
    )
    return connection


def until(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_a_client_that_leaves_in_the_middle_leaves_nothing(tmp_path: Path, model: ScriptedUpstream, size: int) -> None:
    with serving(tmp_path, model) as api:
        connection = begin(api.server.url, size)
        until(lambda: len(files(tmp_path)) == 1)
        connection.close()
        until(lambda: files(tmp_path) == [])
        assert api.get("/files").json()["data"] == []


def test_a_server_that_stops_in_the_middle_leaves_nothing(tmp_path: Path, model: ScriptedUpstream) -> None:
    with serving(tmp_path, model) as api:
        connection = begin(api.server.url, 3_000_000)
        until(lambda: len(files(tmp_path)) == 1)
    connection.close()
    assert files(tmp_path) == []


def test_an_upload_that_stops_is_given_up_and_leaves_nothing(tmp_path: Path, model: ScriptedUpstream) -> None:
    with (
        serving(tmp_path, model, "server: {body_timeout_seconds: 0.5}") as api,
        closing(begin(api.server.url, 3_000_000)) as connection,
    ):
        answer = connection.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"The upload has stopped" in answer
        until(lambda: files(tmp_path) == [])


@pytest.mark.slow
def test_a_server_that_is_killed_in_the_middle_leaves_nothing(tmp_path: Path, model: ScriptedUpstream) -> None:
    settings_for(tmp_path, model.url)
    with process(tmp_path) as (url, running):
        kept = httpx2.post(f"{url}/files", files={"file": ("a", b"kept")}, data={"purpose": "user_data"}).json()
        connection = begin(url, 3_000_000)
        until(lambda: len(files(tmp_path)) == 2)
        running.kill()
        running.wait(10)
        connection.close()
    assert len(files(tmp_path)) == 2, "nobody could clear up"
    with process(tmp_path) as (url, _):
        until(lambda: [path.name for path in files(tmp_path)] == [kept["id"]])
        assert [one["id"] for one in httpx2.get(f"{url}/files").json()["data"]] == [kept["id"]]
        assert httpx2.get(f"{url}/files/{kept['id']}/content").content == b"kept"


def test_eight_uploads_at_once_hold_nobody_up(tmp_path: Path, model: ScriptedUpstream) -> None:
    def content() -> Iterator[bytes]:
        yield HEAD
        for _ in range(40):
            yield PIECE
        yield b"\r\n--b--\r\n"

    def up(api: Driver) -> int:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        reply = httpx2.post(f"{api.server.url}/files", content=content(), headers=headers, timeout=50)
        assert reply.status_code == 200, reply.text
        found: int = reply.json()["bytes"]
        return found

    with serving(tmp_path, model) as api, ThreadPoolExecutor(8) as pool:
        stop = threading.Event()
        waits: list[float] = []

        def ask() -> None:
            with httpx2.Client() as http:
                while not stop.is_set():
                    start = time.perf_counter()
                    assert http.get(f"{api.server.url}/health").status_code == 200
                    waits.append(time.perf_counter() - start)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            assert [*pool.map(up, [api] * 8)] == [40_000_000] * 8
        finally:
            stop.set()
            asking.join()
        # Clients and server share the interpreter here: the bound is against being blocked, not for speed.
        assert len(waits) > 20
        assert sorted(waits)[len(waits) // 2] < 0.25
