"""A model server on a loopback port that answers GET /v1/models as told."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest


class ModelServer(ThreadingHTTPServer):
    """Answers every GET with `status` and `body`, and keeps the headers it was asked with."""

    status = 200
    body = b'{"object":"list","data":[]}'

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class _Answer(BaseHTTPRequestHandler):
    server: ModelServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def model_server() -> Iterator[Callable[..., ModelServer]]:
    """Starts model servers; all are stopped at the end."""
    started: list[tuple[ModelServer, Thread]] = []

    def start(body: bytes = ModelServer.body, status: int = 200) -> ModelServer:
        server = ModelServer()
        server.body, server.status = body, status
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        started.append((server, thread))
        return server

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join(5)
        server.server_close()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, a data folder in it, and no variable that configures anything."""
    import os

    from treadle.models.vendors import VENDORS

    for name in os.environ:
        if name.startswith("TREADLE_"):
            monkeypatch.delenv(name)
    for row in VENDORS:
        for name in (row.key_variable, row.url_variable, row.host_variable):
            if name:
                monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TREADLE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TREADLE_LOCAL__ENABLED", "false")
    monkeypatch.chdir(tmp_path)
    return tmp_path
