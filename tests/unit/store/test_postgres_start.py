"""Starting on Postgres: migrations, several processes at once, and databases that cannot be used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import treadle.store
from tests.postgres_kit import Cluster
from tests.unit.store.support import ALICE, turn
from tests.unit.store.test_start import START, run
from treadle.errors import StorageFault
from treadle.store.connect import connect, look
from treadle.store.db import HEAD
from treadle.store.migrate import postgres_engine
from treadle.store.responses import SqlResponses
from treadle.store.schema import metadata

pytest.importorskip("psycopg", reason="the extra `postgres` is not installed")


@pytest.fixture
def unused(cluster: Cluster) -> Iterator[str]:
    """The name of a database with nothing in it."""
    name = cluster.fresh(migrated=False)
    yield name
    cluster.drop(name)


def test_processes_that_start_on_a_fresh_database_at_once_migrate_it_once(cluster: Cluster, unused: str) -> None:
    processes = [run(START, cluster.url(unused)) for _ in range(3)]
    results = [process.communicate(timeout=30) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    assert [output for output, _ in results] == ["[]\n"] * 3, "the server's process has migration tools in it"
    assert cluster.run("SELECT COUNT(*) FROM treadle.threads", unused) == [(3,)]
    assert cluster.run("SELECT version_num FROM treadle.alembic_version", unused) == [(HEAD,)]


def test_the_migrated_schema_is_the_one_in_the_metadata(postgres_url: str) -> None:
    engine = postgres_engine(postgres_url)
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        assert compare_metadata(MigrationContext.configure(connection, opts=options), metadata) == []
        texts = sa.text(
            "SELECT DISTINCT collation_name FROM information_schema.columns"
            " WHERE table_schema = 'treadle' AND data_type = 'text'"
        )
        assert connection.execute(texts).all() == [("C",)], "ids have to sort by their bytes, wherever"


async def test_our_tables_are_in_a_schema_of_their_own(cluster: Cluster, unused: str) -> None:
    """A database may have other programs' tables of the same names."""
    cluster.run("CREATE TABLE items (mine int); CREATE TABLE files (mine int)", unused)
    database = connect(cluster.url(unused))
    await database.start()
    await SqlResponses(database).settle(ALICE, turn("question", "answer"))
    await database.close()
    assert cluster.run("SELECT COUNT(*) FROM public.items", unused) == [(0,)]


async def test_a_database_newer_than_the_code_is_refused(cluster: Cluster, postgres_database: str) -> None:
    cluster.run("UPDATE treadle.alembic_version SET version_num = '9999'", postgres_database)
    database = connect(cluster.url(postgres_database))
    with pytest.raises(StorageFault, match=r"9999.*newer version"):
        await database.start()
    with pytest.raises(StorageFault, match=r"9999.*newer version"):
        await look(cluster.url(postgres_database))
    assert cluster.run("SELECT version_num FROM treadle.alembic_version", postgres_database) == [("9999",)]


async def test_an_older_database_is_brought_up_to_date(cluster: Cluster, unused: str) -> None:
    assert "still empty" in await look(cluster.url(unused))
    assert cluster.run("SELECT to_regnamespace('treadle') IS NULL", unused) == [(True,)], "looking changes nothing"
    database = connect(cluster.url(unused))
    await database.start()
    await database.close()
    assert await look(cluster.url(unused)) == (
        f"Postgres at {_host(cluster.url())}/{unused} can be used; its schema is at revision {HEAD}"
    )


async def test_a_migration_that_fails_is_a_storage_fault_and_leaves_nothing(
    cluster: Cluster, unused: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.run("CREATE SCHEMA treadle; CREATE TABLE treadle.approvals (x int)", unused)
    with pytest.raises(StorageFault, match="brought up to date"):
        await connect(cluster.url(unused)).start()
    assert cluster.run("SELECT tablename FROM pg_tables WHERE schemaname = 'treadle'", unused) == [("approvals",)]
    assert "approvals" in caplog.text, "the log tells why"


@pytest.fixture
def secret(cluster: Cluster) -> Iterator[str]:
    """A role that may do nothing but connect, and has a password that must not be shown."""
    cluster.run("CREATE ROLE guest LOGIN PASSWORD 'hush'")
    yield "guest:hush"
    cluster.run("DROP ROLE guest")


async def test_a_database_that_cannot_be_used_says_why_without_the_password(
    cluster: Cluster, unused: str, secret: str
) -> None:
    latin = cluster.fresh(migrated=False, options="ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    here = f"postgresql://{secret}@/{{}}?host={_host(cluster.url())}"
    attempts = {
        f"postgresql://{secret}@127.0.0.1:1/x": "Connection refused",
        here.format("nowhere"): 'database "nowhere" does not exist',
        here.format(unused): "may not make one",
        here.format(latin): "UTF8 is needed",
        here.format(unused).replace("guest", "nobody"): 'role "nobody" does not exist',
        f"postgresql://{secret}@no-such-host.invalid/x": "resolve host",
    }
    for url, reason in attempts.items():
        for attempt in (connect(url).start, lambda url=url: look(url)):
            with pytest.raises(StorageFault) as caught:
                await attempt()
            assert reason in caught.value.message
            assert caught.value.message.startswith("`store.url`: Postgres at ")
            assert "hush" not in caught.value.message
    cluster.drop(latin)


@pytest.mark.parametrize("url", ["postgresql://me:hu%sh@host/x", "postgresql://me:hush@host/x?nonsense=1"])
def test_an_address_that_is_none_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"`store\.url`: not an address") as caught:
        connect(url)
    assert "hu" not in str(caught.value)
    assert caught.value.__suppress_context__, "the driver's text shows parts of it"


def test_words_that_only_postgres_knows_are_in_the_files_of_its_engine_only() -> None:
    ours = re.compile(r"\b(pg_\w+|ILIKE|SKIP LOCKED|FOR UPDATE|to_reg\w+|search_path)\b|::\w|%s")
    found = {file.name for file in Path(treadle.store.__path__[0]).glob("*.py") if ours.search(file.read_text("utf-8"))}
    assert found == {"postgres.py", "postgres_connection.py", "migrate.py"}


def _host(url: str) -> str:
    return url.partition("host=")[2]
