"""A server with vector stores for behaviour tests: embeddings come from the scripted model server, by common words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx2
import pytest

from treadle.testing.server import RunningServer, settings_for
from treadle.testing.upstream import ScriptedUpstream

__all__ = ["EMBEDDINGS", "Library", "libraries", "library"]

EMBEDDINGS = "embeddings: {default: scripted/words}"
FAST = "knowledge: {embedding_retries: 0, wait_seconds: 20}"


class Library:
    """The official client in its strict mode, raw HTTP, and shortcuts for uploading and waiting."""

    def __init__(self, server: RunningServer, model: ScriptedUpstream, data: Path, http: Any, client: Any) -> None:
        self.url = server.url
        self.model = model
        self.data = data
        self.http = http
        self.client = client

    def upload(self, text: str | bytes, name: str = "a.txt") -> str:
        content = text.encode() if isinstance(text, str) else text
        found: str = self.client.files.create(file=(name, content), purpose="assistants").id
        return found

    def store(self, **given: Any) -> str:
        found: str = self.client.vector_stores.create(**given).id
        return found

    def add(self, store: str, text: str | bytes, name: str = "a.txt", **given: Any) -> Any:
        """An attached file, once it is no longer in progress."""
        return self.client.vector_stores.files.create_and_poll(
            self.upload(text, name), vector_store_id=store, poll_interval_ms=20, max_wait_seconds=20, **given
        )

    def search(self, store: str, query: str | list[str], **given: Any) -> Any:
        return self.client.vector_stores.search(store, query=query, **given)

    def texts(self, store: str, query: str, **given: Any) -> list[str]:
        return [found.content[0].text for found in self.search(store, query, **given).data]

    def post(self, path: str, body: Any) -> Any:
        return self.http.post(self.url + path, json=body)

    def get(self, path: str) -> Any:
        return self.http.get(self.url + path)

    def delete(self, path: str) -> Any:
        return self.http.delete(self.url + path)

    def sql(self, statement: str, *values: Any) -> None:
        """Changes the database behind the server's back, to let time pass for example."""
        with closing(sqlite3.connect(self.data / "treadle.sqlite3", timeout=20)) as connection, connection:
            connection.execute(statement, values)

    def counts(self, store: str) -> dict[str, int]:
        found: dict[str, int] = self.get(f"/vector_stores/{store}").json()["file_counts"]
        return found

    def settled(self, store: str, *, seconds: float = 20) -> dict[str, int]:
        """The counts once nothing is in progress any more."""
        until = monotonic() + seconds
        while (counts := self.counts(store))["in_progress"]:
            assert monotonic() < until, f"still in progress after {seconds} s: {counts}"
            sleep(0.02)
        return counts


@contextmanager
def libraries(data: Path, *extra: str) -> Iterator[Library]:
    """A library with further YAML lines."""
    from openai import OpenAI

    with ScriptedUpstream(dimensions=64) as model:
        settings = settings_for(data, model.url, EMBEDDINGS, *extra)
        with (
            RunningServer(settings) as server,
            httpx2.Client(timeout=30) as http,
            OpenAI(base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True) as client,
        ):
            yield Library(server, model, data, http, client)
        model.assert_consumed()


@pytest.fixture(scope="module")
def shared_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with libraries(tmp_path_factory.mktemp("library"), FAST) as found:
        yield found


@pytest.fixture
def library(shared_library: Library) -> Library:
    """One server for all tests of a module: each makes stores of its own."""
    shared_library.model.embedding = None
    return shared_library
