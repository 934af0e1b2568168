"""Documents are read in processes apart, bounded in time and memory, and nothing of them is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from tests.unit.retrieval.documents_kit import archive, cut, docx, parts, pdf, words
from treadle.errors import InvalidRequest, Stopping, StorageFault, UnreadableFile, UnsupportedFile
from treadle.ports import ChunkRules
from treadle.retrieval.documents import Bounds, DocumentReader
from treadle.retrieval.extract import pool
from treadle.retrieval.extract.frames import Order, packed

PATIENCE = 20
LONG = words(400_000).encode()
"""About 3 MB: a second of work."""

needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[DocumentReader]:
    async with DocumentReader(folder=tmp_path) as reader:
        yield reader


def bounded(tmp_path: Path, **bounds: float) -> DocumentReader:
    return DocumentReader(Bounds(**bounds), folder=tmp_path)  # type: ignore[arg-type]


def left(folder: Path) -> list[Path]:
    """Files below the folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


async def ended(pid: int) -> None:
    """Waits until the process is gone, also from the table of processes."""

    def wait() -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        try:
            assert poll.poll(PATIENCE * 1000), f"process {pid} is still there"
        finally:
            os.close(descriptor)

    await asyncio.to_thread(wait)
    async with asyncio.timeout(PATIENCE):
        while Path(f"/proc/{pid}").exists():  # dead, until its parent has taken note
            await asyncio.sleep(0.005)


async def test_markdown_becomes_chunks_under_their_headings(reader: DocumentReader) -> None:
    text = "# Rivers\n\n" + "The Elbe flows. " * 30 + "\n\n## Lakes\n\n" + "The Mueritz is wide. " * 30
    chunks = await cut(reader, text.encode(), "water.md", ChunkRules(max_tokens=200, overlap_tokens=50))
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert {chunk.section for chunk in chunks} == {"Rivers", "Rivers > Lakes"}


async def test_chunks_come_in_batches_before_the_whole_document_is_read(reader: DocumentReader) -> None:
    async with aclosing(reader.chunks(parts(LONG), "a.txt", ChunkRules(100, 0))) as batches:
        sizes = [len(batch) async for batch in batches]
    assert max(sizes) == 64
    assert len(sizes) > 50


async def test_a_text_is_given_up_to_its_limit(reader: DocumentReader) -> None:
    assert await reader.text(parts(b"One two three."), "a.txt", 7) == "One two"
    assert await reader.text(parts(b"# One\n\ntwo\n"), "a.md", 100) == "# One\n\ntwo"
    assert await reader.text(parts(LONG), "a.txt", 1_000_000) == LONG.decode()[:1_000_000]
    assert await reader.text(parts(b"One"), "a.txt", 0) == ""


async def test_a_limited_text_is_had_from_a_document_with_too_much_of_it(tmp_path: Path) -> None:
    async with bounded(tmp_path, characters=10_000) as reader:
        assert await reader.text(parts(LONG), "a.txt", 50) == LONG.decode()[:50]
        with pytest.raises(UnreadableFile, match="more than 10,000 characters"):
            await cut(reader, LONG, "a.txt")
        with pytest.raises(UnreadableFile, match="more than 10,000 characters"):
            await cut(reader, pdf([words(150).replace(". ", ".\n")] * 30), "a.pdf")


async def test_more_documents_than_processes_are_read_in_turn(reader: DocumentReader) -> None:
    texts = [f"Document {number}." for number in range(12)]
    found = await asyncio.gather(*(cut(reader, text.encode(), "a.txt") for text in texts))
    assert [chunk.text for [chunk] in found] == texts
    assert len(reader.pids) <= 2


async def test_whole_texts_do_not_wait_for_files_that_are_being_cut(tmp_path: Path) -> None:
    async with (
        DocumentReader(processes=1, folder=tmp_path) as reader,
        aclosing(reader.chunks(parts(LONG), "a.txt", ChunkRules())) as batches,
    ):
        await anext(batches)
        async with asyncio.timeout(PATIENCE):
            assert await reader.text(parts(b"Hello"), "b.txt", 10) == "Hello"


async def test_a_process_serves_several_documents_and_is_replaced_in_time(
    reader: DocumentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MAX_DOCUMENTS", 3)
    pids = []
    for _ in range(5):
        pids += reader.pids
        await cut(reader, b"Hello", "a.txt")
    assert pids[0] == pids[1]
    assert len(set(pids)) == 2


async def test_a_process_that_holds_much_memory_is_replaced(
    reader: DocumentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MAX_MEMORY_MB", 1)
    await cut(reader, b"Hello", "a.txt")
    assert reader.pids == []


# Bounds


async def test_a_document_that_takes_too_long_is_given_up_and_the_next_one_is_read(tmp_path: Path) -> None:
    async with bounded(tmp_path, seconds=0.2) as reader:
        await cut(reader, b"First.", "a.txt")
        [before] = reader.pids
        start = time.monotonic()
        with pytest.raises(UnreadableFile, match=r"more time than allowed \(0\.2 seconds\)"):
            await cut(reader, LONG, "a.txt")
        assert time.monotonic() - start < 5
        await ended(before)
        [chunk] = await cut(reader, b"Hello", "a.txt")
        assert chunk.text == "Hello"


async def test_time_in_which_nobody_takes_the_chunks_does_not_count(tmp_path: Path) -> None:
    async with bounded(tmp_path, seconds=2.5) as reader:
        count = 0
        async for batch in reader.chunks(parts(LONG[: len(LONG) // 4]), "a.txt", ChunkRules(100, 0)):
            count += len(batch)
            await asyncio.sleep(0.08)  # a model that embeds them
        assert count > 64 * 40


async def test_a_document_that_takes_too_much_memory_is_given_up_and_the_next_one_is_read(tmp_path: Path) -> None:
    async with bounded(tmp_path, memory_mb=24) as reader:
        with pytest.raises(UnreadableFile, match=r"more memory than allowed \(24 MB\)"):
            await cut(reader, b"x y " * 5_000_000, "a.txt")
        [chunk] = await cut(reader, b"Hello", "a.txt")
        assert chunk.text == "Hello"


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
def test_a_process_that_computes_for_ever_is_ended_by_the_system(tmp_path: Path) -> None:
    # Fifty million bytes of empty elements: work without any output, so that only the limit of CPU time ends it.
    hostile = tmp_path / "a.docx"
    members = {"[Content_Types].xml": b"<x/>", "word/document.xml": b"<w>" + b"<a/>" * 12_000_000 + b"</w>"}
    hostile.write_bytes(archive(members, 0))
    order = packed(Order(path=str(hostile), filename="a.docx", bounds=Bounds(seconds=1), rules=ChunkRules()))
    worker = subprocess.Popen(
        [sys.executable, "-m", "treadle.retrieval.extract.worker", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    with worker:
        assert worker.stdin is not None
        worker.stdin.write(order)
        worker.stdin.flush()
        assert worker.wait(PATIENCE) == -signal.SIGXCPU


async def test_a_document_that_is_too_large_is_refused_while_it_arrives(tmp_path: Path) -> None:
    taken = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 100_000

    async with bounded(tmp_path, max_mb=1) as reader:
        with pytest.raises(UnreadableFile, match=r"larger than allowed \(1 MB\)"):
            [batch async for batch in reader.chunks(endless(), "a.txt", ChunkRules())]
        assert taken == 11
        assert left(tmp_path) == []


async def test_a_crash_is_told_and_the_next_document_is_read(reader: DocumentReader) -> None:
    with pytest.raises(UnreadableFile, match=r"crashed on it \(SIGSEGV\)"):
        async for _ in reader.chunks(parts(LONG), "a.txt", ChunkRules(100, 0)):
            for pid in reader.pids:
                os.kill(pid, signal.SIGSEGV)
    [chunk] = await cut(reader, b"Hello", "a.txt")
    assert chunk.text == "Hello"


async def test_a_process_that_died_between_two_documents_is_not_noticed(reader: DocumentReader) -> None:
    await cut(reader, b"Hello", "a.txt")
    [pid] = reader.pids
    os.kill(pid, signal.SIGKILL)
    await ended(pid)
    [chunk] = await cut(reader, b"Hello again", "a.txt")
    assert chunk.text == "Hello again"


async def test_rules_that_nothing_can_be_cut_by_are_the_callers_fault(reader: DocumentReader) -> None:
    with pytest.raises(InvalidRequest, match="at least 16 tokens"):
        await cut(reader, b"Hello", "a.txt", ChunkRules(1, 0))


async def test_the_event_loop_is_never_blocked(reader: DocumentReader) -> None:
    document = pdf(["\n".join(textwrap.wrap(words(400), 90))] * 200)
    await cut(reader, b"warm", "a.txt")
    worst = 0.0

    async def watch() -> None:
        nonlocal worst
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0)
            worst = max(worst, time.perf_counter() - begun)

    watching = asyncio.create_task(watch())
    assert len(await cut(reader, document, "a.pdf")) > 100
    watching.cancel()
    assert worst < 0.25  # a whole document takes longer; a busy machine takes some of it


# What is left


async def test_leaving_early_ends_the_process_and_removes_the_document(reader: DocumentReader, tmp_path: Path) -> None:
    async with aclosing(reader.chunks(parts(LONG), "a.txt", ChunkRules())) as batches:
        await anext(batches)
        [pid] = reader.pids
        assert len(left(tmp_path)) == 1
    assert reader.pids == []
    assert left(tmp_path) == []
    await ended(pid)


async def test_cancelling_ends_the_process_and_removes_the_document(reader: DocumentReader, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in reader.chunks(parts(LONG), "a.txt", ChunkRules(100, 0)):
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    [pid] = reader.pids
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended(pid)
    gc.collect()
    assert left(tmp_path) == []


@pytest.mark.parametrize("turns", range(12))
async def test_cancelling_at_any_moment_leaves_nothing(tmp_path: Path, turns: int) -> None:
    async with DocumentReader(folder=tmp_path) as reader:
        task = asyncio.create_task(cut(reader, LONG[:50_000], "a.txt"))
        for _ in range(turns * turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert left(tmp_path) == []
        [chunk] = await cut(reader, b"Hello", "a.txt")
        assert chunk.text == "Hello"
        pids = reader.pids
    for pid in pids:
        await ended(pid)
    assert list(tmp_path.iterdir()) == []


async def test_closing_ends_readers_at_work_as_stopping(tmp_path: Path) -> None:
    reader = DocumentReader(folder=tmp_path)
    batches = reader.chunks(parts(LONG), "a.txt", ChunkRules(100, 0))
    await anext(batches)
    pids = reader.pids
    await reader.close()
    with pytest.raises(Stopping):
        [batch async for batch in batches]
    with pytest.raises(Stopping):
        await reader.text(parts(b"Hello"), "a.txt", 10)
    for pid in pids:
        await ended(pid)
    await reader.close()
    assert list(tmp_path.iterdir()) == []


async def test_idle_processes_end(tmp_path: Path) -> None:
    async with DocumentReader(folder=tmp_path, idle_seconds=0.01) as reader:
        await cut(reader, b"Hello", "a.txt")
        for pid in reader.pids:
            await ended(pid)
        assert reader.pids == []
        assert len(await cut(reader, b"Hello", "a.txt")) == 1


async def test_a_fault_of_the_source_reaches_the_caller(reader: DocumentReader, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"Hello"
        raise ConnectionResetError("the disk is gone")

    with pytest.raises(ConnectionResetError, match="the disk is gone"):
        await reader.text(broken(), "a.txt", 100)
    assert left(tmp_path) == []


async def test_a_place_that_cannot_be_written_to_is_a_fault_of_storage(tmp_path: Path) -> None:
    async with DocumentReader(folder=tmp_path / "missing") as reader:
        with pytest.raises(StorageFault, match="No such file"):
            await reader.text(parts(b"Hello"), "a.txt", 100)

    async def removing() -> AsyncIterator[bytes]:
        yield b"Hello"
        for document in left(tmp_path):
            document.unlink()

    async with DocumentReader(folder=tmp_path) as reader:
        with pytest.raises(StorageFault, match="No such file"):
            await reader.text(removing(), "a.txt", 100)


async def test_the_source_is_closed_even_if_it_is_not_read_to_its_end(tmp_path: Path) -> None:
    closed = False

    async def source() -> AsyncIterator[bytes]:
        nonlocal closed
        try:
            yield b"x" * 2_000_000
            yield b"y"
        finally:
            closed = True

    async with bounded(tmp_path, max_mb=1) as reader:
        with pytest.raises(UnreadableFile):
            await reader.text(source(), "a.txt", 100)
        assert closed


async def test_a_document_is_readable_by_us_only(reader: DocumentReader, tmp_path: Path) -> None:
    async with aclosing(reader.chunks(parts(LONG), "../../x.txt", ChunkRules())) as batches:
        await anext(batches)
        [document] = left(tmp_path)
        assert document.stat().st_mode & 0o777 == 0o600
        assert document.parent.stat().st_mode & 0o777 == 0o700


@needs_proc
async def test_the_process_knows_no_secret_of_ours(reader: DocumentReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    await cut(reader, b"Hello", "a.txt")
    [pid] = reader.pids
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()


PARENT = """
import asyncio, sys
from pathlib import Path
from treadle.ports import ChunkRules
from treadle.retrieval.documents import DocumentReader

async def source(slow):
    yield b"Hello there. " * 400_000
    if slow:
        print("spooling", flush=True)
        await asyncio.Event().wait()

async def main(slow):
    reader = DocumentReader(folder=Path(sys.argv[1]))
    batches = reader.chunks(source(slow), "a.txt", ChunkRules())
    await anext(batches)
    print(*reader.pids, flush=True)
    await asyncio.Event().wait()

asyncio.run(main(sys.argv[2] == "slow"))
"""


@needs_proc
async def test_a_killed_parent_leaves_no_process_and_no_document(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), "fast"], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in (await asyncio.to_thread(parent.stdout.readline)).split()]
        assert len(pids) == 1
        assert len(left(tmp_path)) == 1
        parent.kill()
    for pid in pids:
        await ended(pid)
    assert list(tmp_path.iterdir()) == []


@needs_proc
async def test_a_parent_killed_while_the_document_arrives_leaves_nothing_either(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path), "slow"], stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        assert await asyncio.to_thread(parent.stdout.readline) == b"spooling\n"
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        async with asyncio.timeout(PATIENCE):
            while not (pids := children.read_text().split()):
                await asyncio.sleep(0.005)
        parent.kill()
    for pid in pids:
        await ended(int(pid))
    assert list(tmp_path.iterdir()) == []


# Without the extra


def test_importing_the_reader_imports_no_parser() -> None:
    program = (
        "import sys, treadle.retrieval.documents, treadle.retrieval.extract.worker; "
        "sys.exit(' '.join(sys.modules.keys() & {'tiktoken', 'pypdfium2', 'openpyxl', 'selectolax', 'lxml', 'PIL', "
        "'puremagic', 'charset_normalizer', 'numpy', 'sqlalchemy', 'starlette'}) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=PATIENCE, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


MISSING = "import sys\nsys.modules.update(dict.fromkeys({modules!r}))\n"


@pytest.mark.parametrize(
    ("module", "filename", "document"),
    [
        ("pypdfium2", "a.pdf", lambda: pdf(["Hello"])),
        ("selectolax", "a.html", lambda: b"<html><p>Hello</html>"),
        ("charset_normalizer", "a.txt", lambda: "中文文本的编码检测".encode("gb18030")),
    ],
)
async def test_a_missing_parser_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, filename: str, document: Callable[[], bytes]
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(MISSING.format(modules=[module, "puremagic"]))
    monkeypatch.syspath_prepend(site)
    async with DocumentReader(folder=tmp_path) as reader:
        with pytest.raises(UnsupportedFile, match=rf"{module.replace('_', '-')}.*'treadle\[knowledge\]'"):
            await cut(reader, document(), filename)
        [chunk] = await cut(reader, b"Plain text.", "a.txt")
        assert chunk.text == "Plain text."
        with pytest.raises(UnsupportedFile, match="cannot be read"):
            await cut(reader, b"\x7fELF\x02\x01\x01" + bytes(100), "a.out")


async def test_office_documents_need_no_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(MISSING.format(modules=["lxml", "docx", "pptx", "openpyxl", "PIL"]))
    monkeypatch.syspath_prepend(site)
    async with DocumentReader(folder=tmp_path) as reader:
        [chunk] = await cut(reader, docx(lambda document: document.add_paragraph("Hello")), "a.docx")
        assert chunk.text == "Hello"


async def test_documents_go_where_temporary_files_go_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with DocumentReader() as reader:
        await cut(reader, b"Hello", "a.txt")
        assert [path.name[:18] for path in tmp_path.iterdir()] == ["treadle-documents-"]
