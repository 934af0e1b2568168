"""What holds for files behind the endpoints: nothing is left over, whatever fails, and hooks come first."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.api.file_sweep import FileSweep
from treadle.api.files import FileService
from treadle.backends.blobs_local import LocalBlobs
from treadle.errors import InvalidRequest, NotFound, StorageFault, TooLarge
from treadle.ports import FileRow
from treadle.scope import LOCAL, Principal, Scope
from treadle.store.files import SqlFiles
from treadle.store.sqlite import Sqlite
from treadle.testing.conformance_blobs import pieces
from treadle.wire.files import CreateFile

OTHER = Scope("default", Principal("other"))
WANTED = CreateFile(purpose="user_data")


class Clock:
    now = time.time()

    def __call__(self) -> float:
        return self.now


class Place:
    """A service over a real database and a real folder."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.database = Sqlite(folder / "treadle.db")
        self.rows = SqlFiles(self.database, self.clock)
        self.folder = folder / "blobs"
        self.blobs = LocalBlobs(self.folder)
        self.service = FileService(self.rows, self.blobs, max_bytes=1000, kept_seconds=7200, clock=self.clock)
        self.sweep = FileSweep(self.service, self.rows, self.blobs, clock=self.clock)

    async def upload(self, content: bytes = b"x", scope: Scope = LOCAL, wanted: CreateFile = WANTED) -> str:
        async with self.service.upload(scope) as upload:
            await upload.receive("a.txt", pieces(content))
            return (await upload.complete(wanted)).id

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.rglob("*") if path.is_file())

    async def text(self, file_id: str, scope: Scope = LOCAL) -> str:
        _, content = await self.service.open(scope, file_id)
        return b"".join([piece async for piece in content]).decode()


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database. Copy it, never open it."""
    path = tmp_path_factory.mktemp("migrated") / "treadle.db"

    async def create() -> None:
        database = Sqlite(path)
        await database.start()
        await database.close()

    asyncio.run(create())
    return path


@pytest.fixture
async def place(migrated: Path, tmp_path: Path) -> AsyncIterator[Place]:
    shutil.copy(migrated, tmp_path / "treadle.db")
    place = Place(tmp_path)
    await place.database.start()
    yield place
    await place.blobs.close()
    await place.database.close()


async def test_an_upload_that_is_not_completed_leaves_nothing(place: Place) -> None:
    with pytest.raises(RuntimeError):
        async with place.service.upload(LOCAL) as upload:
            await upload.receive("a", pieces(b"x"))
            assert len(place.left()) == 1
            raise RuntimeError("the form breaks off")
    with pytest.raises(InvalidRequest):
        async with place.service.upload(LOCAL) as upload:
            await upload.complete(WANTED)
    with pytest.raises(TooLarge):
        await place.upload(bytes(1001))
    assert place.left() == []


async def test_a_client_that_leaves_while_the_row_is_written_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes on writing for somebody who has gone."""
    add, added = place.rows.add, asyncio.Event()

    async def slow(scope: Scope, row: FileRow) -> None:
        await add(scope, row)
        added.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(place.rows, "add", slow)
    task = asyncio.create_task(place.upload())
    async with asyncio.timeout(10):
        await added.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert place.left() == []
    page = await place.rows.page(LOCAL, after=None, limit=10, order="asc", purpose=None)
    assert page.files == []


async def test_whoever_made_something_of_a_file_is_told_before_it_goes(place: Place) -> None:
    told: list[tuple[Scope, str]] = []
    broken = True

    async def forget(scope: Scope, file_id: str) -> None:
        told.append((scope, file_id))
        if broken:
            raise StorageFault("The index is away.")

    place.service.on_delete(forget)
    file_id = await place.upload()
    with pytest.raises(StorageFault):
        await place.service.delete(LOCAL, file_id)
    assert await place.text(file_id) == "x", "it can be deleted again"
    broken = False
    await place.service.delete(LOCAL, file_id)
    assert told == [(LOCAL, file_id)] * 2
    with pytest.raises(NotFound):
        await place.service.delete(LOCAL, file_id)
    with pytest.raises(NotFound):
        await place.service.delete(OTHER, await place.upload())
    assert len(told) == 2


async def test_what_is_kept_is_a_file_of_the_caller_for_a_while(place: Place) -> None:
    row = await place.service.keep(LOCAL, "../result.txt", "naïve 😀 \ud800")
    assert (row.filename, row.purpose, row.media_type) == ("result.txt", "user_data", "text/plain")
    assert row.expires_at == row.created_at + 7200
    assert await place.text(row.id) == "naïve 😀 ?"
    with pytest.raises(NotFound):
        await place.service.open(OTHER, row.id)
    assert await place.service.find(LOCAL, [row.id]) == {row.id: row}


async def test_the_sweep_takes_expired_files_of_all_scopes(place: Place) -> None:
    told: list[str] = []

    async def forget(scope: Scope, file_id: str) -> None:
        told.append(file_id)
        if file_id == stuck.id:
            raise StorageFault("The index is away.")

    stuck = await place.service.keep(LOCAL, "a", "1")
    kept = [await place.service.keep(OTHER, "b", "2") for _ in range(3)]
    stays = await place.upload()
    place.service.on_delete(forget)
    await place.sweep.sweep()
    assert told == []
    place.clock.now += 7200
    await place.sweep.sweep()
    assert set(told) == {stuck.id, *(row.id for row in kept)}
    assert place.left() == sorted([stuck.id, stays]), "one that cannot go does not keep the others"


async def test_the_sweep_takes_bytes_without_a_row_once_they_are_old(place: Place) -> None:
    stays = await place.upload()
    await place.blobs.put("file-lost", pieces(b"x"))
    await place.sweep.sweep()
    assert place.left() == sorted(["file-lost", stays])
    place.clock.now += 2 * 3600
    await place.sweep.sweep()
    assert place.left() == [stays]


async def test_the_sweep_runs_at_the_start_and_ends_when_told(place: Place) -> None:
    await place.service.keep(LOCAL, "a", "1")
    place.clock.now += 7200
    place.sweep.start()
    async with asyncio.timeout(10):
        while place.left():
            await asyncio.sleep(0)
    await place.sweep.stop()
