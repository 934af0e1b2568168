"""Starting: migrations, several processes, and what a lost process left behind."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory

import treadle.store
from tests.unit.store.support import ALICE, message, row, turn
from treadle.errors import StorageFault
from treadle.store.connect import connect
from treadle.store.db import HEAD, REVISIONS
from treadle.store.responses import SqlResponses, fail_interrupted
from treadle.store.schema import metadata
from treadle.store.sqlite import Sqlite

MIGRATIONS = Path(treadle.store.__path__[0]) / "migrations"


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Another process, which finds the packages that this one finds."""
    code = f"import sys; sys.path[:] = {sys.path!r}\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


START = """
import asyncio
from treadle.store.connect import connect

async def main():
    database = connect(sys.argv[1])
    await database.start()
    await database.write(lambda c: c.execute(
        "INSERT INTO threads (tenant, owner, base, tip, created_at, segments, metadata)"
        " VALUES ('t', 'o', 0, 0, 0, '[]', '')"))
    await database.close()
    print(sorted({name.partition(".")[0] for name in sys.modules} & {"sqlalchemy", "alembic"}))

asyncio.run(main())
"""


def objects(path: Path) -> set[tuple[str, str]]:
    database = sqlite3.connect(path)
    rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'alembic_version'")
    found = {(name, " ".join(sql.split())) for name, sql in rows}
    database.close()
    return found


def test_the_revisions_that_the_code_knows_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config)
    assert [script.revision for script in scripts.walk_revisions()] == list(reversed(REVISIONS))
    assert scripts.get_current_head() == HEAD


def test_the_migrated_schema_is_the_one_in_the_metadata(migrated: Path, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'created.db'}", poolclass=sa.NullPool)
    metadata.create_all(engine)
    assert objects(migrated) == objects(tmp_path / "created.db")
    copied = sa.create_engine(f"sqlite:///{shutil.copy(migrated, tmp_path)}", poolclass=sa.NullPool)
    with copied.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_the_migrations_are_neutral_of_the_dialect() -> None:
    """They give statements for Postgres too, with the types that Postgres has."""
    written = io.StringIO()
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    engine = sa.create_mock_engine("postgresql://", lambda *_: None)
    context = MigrationContext.configure(dialect=engine.dialect, opts={"as_sql": True, "output_buffer": written})
    with Operations.context(context):
        for script in ScriptDirectory.from_config(config).walk_revisions("base", "heads"):
            script.module.upgrade()
    sql = written.getvalue()
    assert "key BIGSERIAL NOT NULL" in sql
    assert "data BYTEA NOT NULL" in sql
    assert "ON responses (lease) WHERE lease IS NOT NULL" in sql


def test_two_processes_that_start_on_a_fresh_database_both_come_up(tmp_path: Path) -> None:
    processes = [run(START, str(tmp_path / "fresh.db")) for _ in range(3)]
    results = [process.communicate(timeout=30) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], results
    with sqlite3.connect(tmp_path / "fresh.db") as database:
        assert database.execute("SELECT count(*) FROM threads").fetchone() == (3,)
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]
    database.close()


def test_the_server_process_never_imports_the_migration_tools(tmp_path: Path) -> None:
    for _ in ("migrates", "is at head"):
        process = run(START, str(tmp_path / "fresh.db"))
        output, errors = process.communicate(timeout=30)
        assert (process.returncode, output) == (0, "[]\n"), errors


def test_the_migration_can_be_run_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "by hand?.db"
    process = run("from treadle.store.migrate import main; main()", f"sqlite:///{path}")
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert {name for name, _ in objects(path)} >= {"threads", "items", "responses"}


async def test_a_path_may_hold_characters_that_mean_something_in_a_url(tmp_path: Path) -> None:
    path = tmp_path / "50% of #1?mode=ro &c.db"
    database = connect(str(path))
    await database.start()
    await SqlResponses(database).settle(ALICE, turn("question", "answer"))
    await database.close()
    assert path.stat().st_size > 0
    assert {file.name for file in tmp_path.iterdir()} == {path.name, path.name + ".lock"}


async def test_a_database_newer_than_the_code_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("UPDATE alembic_version SET version_num = '9999'")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StorageFault, match="9999") as caught:
        await Sqlite(path).start()
    assert "newer version" in caught.value.message
    assert path.read_bytes() == before


async def test_a_migration_that_fails_is_a_storage_fault_that_says_why(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "odd.db") as other:
        other.execute("CREATE TABLE items (x)")  # in the way
    other.close()
    with pytest.raises(StorageFault) as caught:
        await Sqlite(tmp_path / "odd.db").start()
    assert "already exists" in "".join(getattr(caught.value.__cause__, "__notes__", []))
    assert {name for name, _ in objects(tmp_path / "odd.db")} == {"items"}  # nothing half done


async def test_what_is_no_database_is_a_storage_fault(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be mistaken for one " * 50)
    (tmp_path / "folder.db").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "text.db", tmp_path / "folder.db", tmp_path / "file" / "below.db"):
        with pytest.raises(StorageFault):
            await Sqlite(path).start()


@pytest.mark.parametrize(
    "url", ["postgresql+asyncpg://host/db", "sqlite://", "sqlite:///", "mysql://x", "sqlite://host/x"]
)
def test_a_url_that_is_not_supported_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"store\.url"):
        connect(url)


async def test_a_path_and_a_url_name_the_same_file(path: Path) -> None:
    wanted = turn("question", "answer")
    for url in (str(path), f"sqlite:///{path}"):
        database = connect(url)
        await database.start()
        store = SqlResponses(database)
        if await store.get(ALICE, wanted.row.id) is None:
            await store.settle(ALICE, wanted)
        else:
            assert url.startswith("sqlite:///")
        await database.close()


async def test_the_only_process_marks_at_once_as_failed_what_was_running(path: Path) -> None:
    database = Sqlite(path, recover=fail_interrupted)
    await database.start()
    store = SqlResponses(database, clock=lambda: 100)
    running, finished = row(status="in_progress", data=b'{"error":null,"tools":[]}'), turn("question", "answer")
    await store.begin(ALICE, running, [message("question")], 10_000)
    await store.settle(ALICE, finished)
    await database.close()

    database = Sqlite(path, recover=fail_interrupted)
    await database.start()
    store = SqlResponses(database, clock=lambda: 101)
    lost, kept = await store.get(ALICE, running.id), await store.get(ALICE, finished.row.id)
    await database.close()
    assert lost is not None
    assert kept is not None
    assert (lost.row.status, kept.row.status) == ("failed", "completed")
    assert b'"code":"server_error"' in lost.row.data
    assert b'"tools":[]' in lost.row.data
    assert len(lost.inputs) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="file locks")
async def test_a_process_that_is_not_alone_leaves_running_responses_to_their_leases(path: Path) -> None:
    first, second = Sqlite(path, recover=fail_interrupted), Sqlite(path, recover=fail_interrupted)
    await first.start()
    running = row(status="in_progress")
    await SqlResponses(first).begin(ALICE, running, [], 10**10)
    await second.start()
    found = await SqlResponses(second).get(ALICE, running.id)
    assert found is not None
    assert found.row.status == "in_progress"
    await first.close()

    third = Sqlite(path, recover=fail_interrupted)  # the second still has the file
    await asyncio.wait_for(third.start(), 10)
    found = await SqlResponses(third).get(ALICE, running.id)
    assert found is not None
    assert found.row.status == "in_progress"
    await second.close()
    await third.close()


def test_words_that_only_sqlite_knows_are_in_the_files_of_its_engine_only() -> None:
    ours = re.compile(r"\b(PRAGMA|ROWID|sqlite_master|IMMEDIATE|json_\w+|GLOB)\b|INSERT OR|IFNULL|\bIS NOT \?")
    found = {file.name for file in Path(treadle.store.__path__[0]).glob("*.py") if ours.search(file.read_text("utf-8"))}
    assert found == {"sqlite.py", "sqlite_workers.py", "migrate.py"}
