"""Blobs as files."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from treadle.backends.blobs_local import LocalBlobs
from treadle.errors import StorageFault
from treadle.testing.conformance import BlobSuite
from treadle.testing.conformance_blobs import keys, later, pieces, whole
from treadle.testing.gates import Gate


@pytest.fixture
async def blobs(tmp_path: Path) -> AsyncIterator[LocalBlobs]:
    blobs = LocalBlobs(tmp_path / "blobs")
    yield blobs
    await blobs.close()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


class TestLocalBlobs(BlobSuite):
    @pytest.fixture
    def blobs(self, blobs: LocalBlobs) -> LocalBlobs:
        return blobs


async def test_only_the_owner_may_read(blobs: LocalBlobs, tmp_path: Path) -> None:
    await blobs.put("file-1", pieces(b"secret"))
    [path] = files(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {
        stat.S_IMODE(folder.stat().st_mode) for folder in path.parents if folder.is_relative_to(tmp_path / "blobs")
    } == {0o700}


async def test_nothing_stays_of_what_broke_off(blobs: LocalBlobs, tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield bytes(3_000_000)
        assert files(tmp_path), "it is written while it comes"
        raise RuntimeError("gone")

    with pytest.raises(RuntimeError):
        await blobs.put("file-1", failing())
    assert files(tmp_path) == []


async def test_what_a_dead_process_was_writing_is_cleared_and_what_a_living_one_writes_is_not(
    blobs: LocalBlobs, tmp_path: Path
) -> None:
    incoming = tmp_path / "blobs" / "incoming"
    incoming.mkdir(parents=True)
    (incoming / "file-dead.0a").write_bytes(b"half")
    started, go_on = Gate(), Gate()

    async def slow() -> AsyncIterator[bytes]:
        yield bytes(2_000_000)
        started.set()
        await go_on.wait()
        yield b"end"

    task = asyncio.create_task(blobs.put("file-living", slow()))
    await started.within(10)
    assert await keys(LocalBlobs(tmp_path / "blobs"), later()) == set()
    assert [path.name.partition(".")[0] for path in incoming.iterdir()] == ["file-living"]
    go_on.set()
    assert await task == 2_000_003
    assert (await whole(blobs, "file-living")).endswith(b"end")
    assert list(incoming.iterdir()) == []


async def test_a_full_disk_is_a_fault_of_storage_and_leaves_nothing(
    blobs: LocalBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("treadle.backends.blobs_local.os.write", full)
    with pytest.raises(StorageFault, match="No space left on device"):
        await blobs.put("file-1", pieces(b"x"))
    monkeypatch.undo()
    assert files(tmp_path) == []


async def test_the_loop_goes_on_while_the_disk_is_slow(blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch) -> None:
    held, entered = Gate(), Gate()
    sync = os.fsync

    def slow(file: int) -> None:
        entered.set()
        held.wait_blocking(10)
        sync(file)

    monkeypatch.setattr("treadle.backends.blobs_local.os.fsync", slow)
    task = asyncio.create_task(blobs.put("file-1", pieces(b"x")))
    await entered.within(10)
    assert not task.done()
    held.set()
    assert await task == 1
