"""Our own adapters pass the suites that plugins run, and the suites catch adapters that do not do their part."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from treadle.models.openai_chat import ChatCompletions, Endpoint
from treadle.models.upstream import open_session
from treadle.ports import Conversations, Embedder, Embedding, Responses
from treadle.store.connect import connect
from treadle.store.conversations import SqlConversations
from treadle.store.db import Database
from treadle.store.responses import SqlResponses
from treadle.store.sqlite import Sqlite
from treadle.testing.conformance import EmbedderSuite, ModelSuite, StoreSuite
from treadle.testing.scripted import WordEmbedder
from treadle.testing.upstream import ScriptedUpstream


class TestChatCompletions(ModelSuite):
    @pytest.fixture
    async def model(self, upstream: ScriptedUpstream) -> AsyncIterator[ChatCompletions]:
        async with open_session() as session:
            yield ChatCompletions(Endpoint(name="scripted", url=upstream.url), session)


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database, made once because migrating takes its time. Copied by each test."""
    path = tmp_path_factory.mktemp("store") / "empty.db"

    async def make() -> None:
        database = Sqlite(path)
        await database.start()
        await database.close()

    asyncio.run(make())
    return path


class TestSqlite(StoreSuite):
    @pytest.fixture
    async def database(self, migrated: Path, tmp_path: Path) -> AsyncIterator[Sqlite]:
        database = Sqlite(Path(shutil.copy(migrated, tmp_path / "treadle.db")))
        await database.start()
        yield database
        await database.close()

    @pytest.fixture
    def responses(self, database: Sqlite) -> Responses:
        return SqlResponses(database)

    @pytest.fixture
    def conversations(self, database: Sqlite) -> Conversations:
        return SqlConversations(database)


class TestPostgres(StoreSuite):
    @pytest.fixture
    async def database(self, postgres_url: str) -> AsyncIterator[Database]:
        database = connect(postgres_url, connections=3)
        await database.start()
        yield database
        await database.close()

    @pytest.fixture
    def responses(self, database: Database) -> Responses:
        return SqlResponses(database)

    @pytest.fixture
    def conversations(self, database: Database) -> Conversations:
        return SqlConversations(database)


class TestWordEmbedder(EmbedderSuite):
    @pytest.fixture
    def embedder(self) -> Embedder:
        return WordEmbedder()


class _Lengths:
    """An embedder that does not do its part: long vectors, and any size goes."""

    dimensions = 3

    async def embed(self, texts: Sequence[str], *, dimensions: int | None = None) -> Embedding:
        return Embedding([[float(len(text))] * (dimensions or 3) for text in texts], 1)


@pytest.mark.parametrize(
    "name", ["test_one_unit_vector_per_text_in_order", "test_a_size_it_cannot_give_is_refused_by_name"]
)
def test_the_suite_catches_a_bad_embedder(name: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        asyncio.run(getattr(EmbedderSuite(), name)(_Lengths()))
