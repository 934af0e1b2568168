"""Indexing while the server serves, and when it dies: nothing freezes, nothing is lost, nothing is there twice."""

from __future__ import annotations

import itertools
import signal
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.behaviour.knowledge import EMBEDDINGS, Library, library, shared_library
from tests.behaviour.manifest import behaviour
from tests.behaviour.test_crash import PATIENCE, process
from treadle.testing.gates import Gate
from treadle.testing.server import settings_for
from treadle.testing.upstream import Received, ScriptedUpstream

__all__ = ["library", "shared_library"]

PAGES = 500
FILES = 50
SMALL = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}


def long_pdf(pages: int) -> bytes:
    """A PDF of text, some three hundred words a page."""
    objects = [b"<< /Type /Catalog /Pages 2 0 R >>", b"", b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids = []
    for page in range(pages):
        lines = [
            f"(Page {page} line {line}: the heron of basin {page * 40 + line} waits for fish.) Tj T*"
            for line in range(30)
        ]
        text = ("BT /F1 11 Tf 14 TL 40 780 Td " + " ".join(lines) + " ET").encode()
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(text), text))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<< /Type /Pages /Count %d /Kids [%b] >>" % (pages, b" ".join(kids))
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)


def upload(http: Any, url: str, content: bytes, name: str) -> str:
    reply = http.post(f"{url}/files", files={"file": (name, content)}, data={"purpose": "assistants"})
    assert reply.status_code == 200, reply.text
    found: str = reply.json()["id"]
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
@behaviour("bug-63")
def test_the_server_answers_at_once_while_a_long_document_goes_in(tmp_path: Path) -> None:
    """In a process of its own and with the embedded model: all that indexing does takes place in or beside it."""
    settings_for(tmp_path, "http://127.0.0.1:9/v1", "knowledge: {embedding_batch: 4}")
    with process(tmp_path) as (url, _), httpx2.Client(timeout=PATIENCE) as http:
        file = upload(http, url, long_pdf(PAGES), "long.pdf")
        store = http.post(f"{url}/vector_stores", json={"name": "long"}).json()["id"]
        begun = time.monotonic()
        attached = http.post(f"{url}/vector_stores/{store}/files", json={"file_id": file}).json()
        assert attached["status"] == "in_progress"
        waits: list[float] = []
        chunks: list[int] = []
        while attached["status"] == "in_progress" and time.monotonic() < begun + 20 + 20 * (not max(chunks, default=0)):
            for _ in range(50):
                start = time.perf_counter()
                assert http.get(f"{url}/health").status_code == 200
                waits.append(time.perf_counter() - start)
                time.sleep(0.005)
            attached = http.get(f"{url}/vector_stores/{store}/files/{file}").json()
            chunks.append(attached.get("chunks_done", 0))
        assert attached["last_error"] is None
        assert len(waits) > 200
        assert statistics.quantiles(waits, n=100)[97] < 0.05, f"slowest: {sorted(waits)[-5:]}"
        assert chunks == sorted(chunks) or attached["status"] == "completed"
        assert max(chunks) > 0, "progress is visible"


@behaviour("bug-63")
def test_one_word_of_fifty_thousand_letters_is_no_endless_loop(library: Library) -> None:
    store = library.store()
    file = library.add(store, "begin " + "x" * 50_000 + " end", chunking_strategy=SMALL)
    assert file.status == "completed"
    content = library.client.vector_stores.files.content(file.id, vector_store_id=store).data
    assert 1 < len(content) < 5_000


@behaviour("bug-63")
def test_ten_files_at_once_are_embedded_in_batches_while_others_get_answers(library: Library) -> None:
    store, gate = library.store(), Gate()
    asked: list[int] = []

    def hold(request: Received) -> Gate | None:
        asked.append(len(request.body["input"]))
        return gate if "heron" in request.body["input"][0] else None

    library.model.embedding = hold
    text = "\n\n".join(f"The heron {number} waits. " + "fish " * 90 for number in range(100))
    ids = [library.upload(f"{text} {number}") for number in range(10)]
    library.client.vector_stores.file_batches.create(store, file_ids=ids, chunking_strategy=SMALL)
    start = time.perf_counter()
    for _ in range(20):
        assert library.get("/health").status_code == 200
        assert library.texts(store, "anything") == []
    assert time.perf_counter() - start < 5, "searches do not wait for what is indexed"
    gate.set()
    assert library.settled(store)["completed"] == 10
    assert max(asked) == 32
    assert len(asked) < 100


def documents() -> dict[str, bytes]:
    """Each has a word of its own in every paragraph; every tenth is empty."""
    found = {}
    for number in range(FILES):
        paragraphs = [f"Word{number:03}x in paragraph {part}. " + "filler " * 80 for part in range(4)]
        found[f"{number}.txt"] = b"" if number % 10 == 9 else "\n\n".join(paragraphs).encode()
    return found


class Killer:
    """Kills a server in the middle of its n-th request for embeddings."""

    def __init__(self) -> None:
        self.running: subprocess.Popen[bytes] | None = None
        self.left = 0

    def __call__(self, request: Received) -> None:
        if self.running is not None:
            self.left -= 1
            if self.left == 0:
                self.running.send_signal(signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(240)
@behaviour("kill-ingestion", "bug-62")
def test_after_kill_9_every_file_is_completed_and_findable_or_failed_and_nothing_is_there_twice(
    tmp_path: Path,
) -> None:
    killer = Killer()
    with ScriptedUpstream(dimensions=64) as upstream:
        upstream.embedding = killer
        settings_for(tmp_path, upstream.url, EMBEDDINGS)
        with process(tmp_path) as (url, running), httpx2.Client(timeout=PATIENCE) as http:
            ids = {name: upload(http, url, content, name) for name, content in documents().items()}
            store = http.post(f"{url}/vector_stores", json={"name": "killed"}).json()["id"]
            killer.left, killer.running = 7, running
            body = {"file_ids": list(ids.values()), "chunking_strategy": SMALL}
            batch = http.post(f"{url}/vector_stores/{store}/file_batches", json=body).json()["id"]
            assert running.wait(PATIENCE) == -signal.SIGKILL
            killer.running = None
        for more in (5, 9):
            with process(tmp_path) as (_, running):
                killer.left, killer.running = more, running
                assert running.wait(PATIENCE) == -signal.SIGKILL
                killer.running = None
        with process(tmp_path) as (url, _), httpx2.Client(timeout=PATIENCE) as http:
            until = time.monotonic() + 60
            while http.get(f"{url}/vector_stores/{store}").json()["file_counts"]["in_progress"]:
                assert time.monotonic() < until
                time.sleep(0.05)
            check_all(http, url, store, batch, ids)


def check_all(http: Any, url: str, store: str, batch: str, ids: dict[str, str]) -> None:
    counts = {"in_progress": 0, "completed": 45, "failed": 5, "cancelled": 0, "total": 50}
    for path in ("", f"/file_batches/{batch}"):
        found = http.get(f"{url}/vector_stores/{store}{path}").json()
        assert (found["status"], found["file_counts"]) == ("completed", counts)
    for number, (name, file) in enumerate(ids.items()):
        row = http.get(f"{url}/vector_stores/{store}/files/{file}").json()
        if number % 10 == 9:
            assert (row["status"], row["last_error"]["code"]) == ("failed", "invalid_file")
            continue
        assert row["status"] == "completed"
        content = http.get(f"{url}/vector_stores/{store}/files/{file}/content").json()["data"]
        texts = [entry["text"] for entry in content]
        assert len(set(texts)) == len(texts) > 1
        query = {"query": f"Word{number:03}x", "max_num_results": 50, "search_mode": "keyword"}
        hits = http.post(f"{url}/vector_stores/{store}/search", json=query).json()["data"]
        assert {hit["filename"] for hit in hits} == {name}
        holding = [text for text in texts if f"Word{number:03}x" in text]
        assert sorted(hit["content"][0]["text"] for hit in hits) == sorted(holding)
    meaning = {"query": "paragraph filler", "max_num_results": 50, "search_mode": "vector"}
    hits = http.post(f"{url}/vector_stores/{store}/search", json=meaning).json()["data"]
    keys = [(hit["file_id"], hit["content"][0]["text"]) for hit in hits]
    assert len(keys) == len(set(keys)) == 50
    assert all(first["score"] >= second["score"] for first, second in itertools.pairwise(hits))
