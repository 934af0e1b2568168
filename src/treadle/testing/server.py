"""A real Treadle server on a loopback port, for tests that drive it through real clients and sockets.

with RunningServer(data_dir, upstream_url) as server:
    OpenAI(base_url=server.url, api_key="none").responses.create(...)
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

import uvicorn

from treadle.cli.protocol import Protocol
from treadle.cli.websocket import WebSocketProtocol, largest_message
from treadle.ports import Observer, ServerTool
from treadle.settings import Settings, load
from treadle.store.connect import connect
from treadle.testing.gates import PATIENCE, Gate
from treadle.testing.serving import QuickServer

DATABASE = "treadle.sqlite3"
PROVIDER = "scripted"
"""The name of the provider whose models a test's upstream serves: ids are `scripted/<model>`."""


def settings_for(data_dir: Path, upstream_url: str, *extra: str) -> Settings:
    """Settings with one provider at `upstream_url`. `extra` are further lines of YAML, at the top level.

    A new folder is given an empty database: making one is a process of its own, which takes longer than most tests.
    """
    file = data_dir / "treadle.yaml"
    lines = [f"data_dir: {data_dir}", "models:", f"  {PROVIDER}: {{kind: openai_chat, url: '{upstream_url}'}}", *extra]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    database = data_dir / DATABASE
    if not database.exists():
        with os.fdopen(os.open(database, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as empty:
            empty.write(_empty_database())
    return load(file, environ={}).require()


@cache
def _empty_database() -> bytes:
    async def make(path: Path) -> None:
        database = connect(str(path))
        await database.start()
        await database.close()

    with TemporaryDirectory() as folder, ThreadPoolExecutor(1) as apart:  # the caller may have a running loop
        path = Path(folder) / DATABASE
        apart.submit(asyncio.run, make(path)).result(2 * PATIENCE)
        return path.read_bytes()


class RunningServer:
    """The server in a thread of its own, with an event loop of its own. `url` ends in `/v1`."""

    def __init__(
        self,
        settings: Settings,
        *,
        server_tools: Mapping[str, ServerTool] | None = None,
        observer: Observer | None = None,
    ) -> None:
        from treadle.app import create_app

        self._ready = Gate()
        config = uvicorn.Config(
            create_app(settings, server_tools=server_tools, observer=observer),
            host="127.0.0.1",
            port=0,
            log_level="warning",
            http=Protocol,
            ws=WebSocketProtocol,
            ws_max_size=largest_message(settings.server.max_body_bytes),
            lifespan="on",
            timeout_graceful_shutdown=2,
        )
        self._server = QuickServer(config, self._ready)
        self._thread = threading.Thread(target=self._server.run, name="treadle-under-test")

    @property
    def root(self) -> str:
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait_blocking(PATIENCE)
        assert self._server.started, "the server did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.stop()
        self._thread.join(2 * PATIENCE)
        assert not self._thread.is_alive(), "the server did not stop"
