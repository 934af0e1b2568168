"""Rows of files: whose they are, how long they live, and lists of them."""

from __future__ import annotations

import pytest

from tests.unit.store.support import ALICE, BOB, NOW, STRANGERS
from treadle.errors import InvalidRequest
from treadle.ids import new_file_id
from treadle.ports import FileRow
from treadle.scope import Scope
from treadle.store.db import Database
from treadle.store.files import SqlFiles


class Clock:
    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def files(database: Database, clock: Clock) -> SqlFiles:
    return SqlFiles(database, clock)


async def added(files: SqlFiles, scope: Scope = ALICE, **fields: object) -> FileRow:
    values: dict[str, object] = {
        "id": new_file_id(),
        "filename": "naïve 😀.txt",
        "purpose": "user_data",
        "bytes": 5_000_000_000,
        "created_at": NOW,
        "media_type": "text/plain",
    }
    row = FileRow(**(values | fields))  # type: ignore[arg-type]
    await files.add(scope, row)
    return row


async def names(files: SqlFiles, scope: Scope = ALICE, **given: object) -> list[str]:
    wanted: dict[str, object] = {"after": None, "limit": 100, "order": "asc", "purpose": None}
    page = await files.page(scope, **(wanted | given))  # type: ignore[arg-type]
    return [row.id for row in page.files]


async def test_a_row_comes_back_as_it_was(files: SqlFiles) -> None:
    row = await added(files, expires_at=NOW + 1)
    assert await files.find(ALICE, [row.id, "file-00", "no id at all\x00"]) == {row.id: row}
    assert await files.find(ALICE, []) == {}


async def test_what_is_somebody_elses_is_not_there(files: SqlFiles) -> None:
    row = await added(files)
    for stranger in STRANGERS:
        assert await files.find(stranger, [row.id]) == {}
        assert await names(files, stranger) == []
        assert not await files.delete(stranger, row.id)
        with pytest.raises(InvalidRequest):
            await names(files, stranger, after=row.id)
    assert await files.delete(ALICE, row.id)
    assert not await files.delete(ALICE, row.id)


async def test_an_expired_row_is_found_by_the_sweep_alone(files: SqlFiles, clock: Clock) -> None:
    old, young = await added(files, expires_at=NOW + 10), await added(files, BOB, expires_at=NOW + 20)
    other = await added(files)
    assert await files.expired(10) == []
    clock.now = NOW + 10
    assert await files.find(ALICE, [old.id, other.id]) == {other.id: other}
    assert await names(files) == [other.id]
    assert await files.expired(10) == [(ALICE, old.id)]
    assert await names(files, after=old.id) == [other.id], "a client may be in the middle of the list"
    clock.now = NOW + 99
    assert await files.expired(10) == [(ALICE, old.id), (BOB, young.id)]
    assert await files.expired(1) == [(ALICE, old.id)]
    assert await files.delete(ALICE, old.id)
    assert await files.expired(10) == [(BOB, young.id)]


async def test_rows_of_any_scope_are_known(files: SqlFiles, clock: Clock) -> None:
    rows = [await added(files, scope, expires_at=NOW + 1) for scope in (ALICE, BOB)]
    clock.now = NOW + 99
    many = [f"file-{number:x}" for number in range(3000)]
    assert await files.known([*many, *(row.id for row in rows)]) == {row.id for row in rows}


async def test_pages_go_on_where_the_one_before_ended(files: SqlFiles) -> None:
    rows = [await added(files, created_at=NOW + number // 3) for number in range(10)]
    ordered = [row.id for row in sorted(rows, key=lambda row: (row.created_at, row.id))]
    found: list[str] = []
    while True:
        page = await files.page(ALICE, after=found[-1] if found else None, limit=4, order="asc", purpose=None)
        found += [row.id for row in page.files]
        if not page.has_more:
            break
    assert found == ordered
    assert await names(files, order="desc", limit=3) == ordered[::-1][:3]
    assert await names(files, order="desc", after=ordered[2]) == ordered[1::-1]
    assert await names(files, purpose="batch") == []
