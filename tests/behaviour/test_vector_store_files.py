"""Files in vector stores through the official client: states, polling, attributes, content, batches."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pypdfium2
import pytest

from tests.behaviour.kit import error
from tests.behaviour.knowledge import Library, library, shared_library
from tests.behaviour.manifest import behaviour
from treadle.testing.gates import Gate
from treadle.testing.turns import Refuse, Reply
from treadle.testing.upstream import Received

__all__ = ["library", "shared_library"]


@behaviour("bug-60")
def test_completed_means_searchable_at_once_and_takes_room(library: Library) -> None:
    store = library.store()
    files = library.client.vector_stores.files
    for number in range(5):
        file = files.create_and_poll(library.upload(f"fruit number {number}"), vector_store_id=store)
        assert (file.status, file.last_error) == ("completed", None)
        assert file.usage_bytes > 0
        assert file.id in [found.file_id for found in library.search(store, f"number {number}").data]
    assert library.client.vector_stores.retrieve(store).usage_bytes > file.usage_bytes


@behaviour("bug-60")
def test_a_file_without_text_fails_with_a_reason(library: Library) -> None:
    store = library.store()
    for content, name in ((b"", "empty.txt"), (b"   \n ", "blank.txt"), (scanned_pdf(), "scan.pdf")):
        file = library.add(store, content, name)
        assert (file.status, file.last_error.code) == ("failed", "invalid_file"), name
        assert file.last_error.message
        assert file.usage_bytes == 0
    assert library.search(store, "x").data == []


def scanned_pdf() -> bytes:
    """One page without text."""
    document = pypdfium2.PdfDocument.new()
    document.new_page(200, 200)
    out = BytesIO()
    document.save(out)
    document.close()
    return out.getvalue()


def test_the_helpers_of_the_client_work_as_they_are(library: Library) -> None:
    store = library.store()
    client = library.client.vector_stores
    one = client.files.upload_and_poll(vector_store_id=store, file=("one.txt", b"apple pie"), attributes={"n": 1})
    assert (one.status, one.attributes) == ("completed", {"n": 1})
    batch = client.file_batches.upload_and_poll(
        store, files=[("two.txt", b"pear cake"), ("three.txt", b"plum jam")], file_ids=[one.id]
    )
    assert (batch.status, batch.file_counts.completed, batch.file_counts.total) == ("completed", 3, 3)
    batch = client.file_batches.create_and_poll(store, file_ids=[library.upload("cherry")])
    assert batch.file_counts.completed == 1
    assert library.counts(store)["completed"] == 4
    texts = [found.content[0].text for found in client.search(store, query="apple pie pear cake", max_num_results=2)]
    assert sorted(texts) == ["apple pie", "pear cake"]


def test_progress_is_visible_and_clients_are_told_when_to_ask_again(library: Library) -> None:
    store, gate = library.store(), Gate()
    library.model.embedding = lambda request: gate if "held" in request.body["input"][0] else None
    batch = library.post(f"/vector_stores/{store}/file_batches", {"file_ids": [library.upload("held")]}).json()
    file = library.get(f"/vector_stores/{store}/files").json()["data"][0]["id"]
    one = f"/vector_stores/{store}"
    paths = (one, f"{one}/files/{file}", f"{one}/file_batches/{batch['id']}")
    for path in paths:
        running = library.get(path)
        assert running.json()["status"] == "in_progress"
        assert int(running.headers["openai-poll-after-ms"]) > 0
    assert running.json()["file_counts"]["in_progress"] == 1
    gate.set()
    library.settled(store)
    for path in paths:
        done = library.get(path)
        assert done.json()["status"] == "completed"
        assert "openai-poll-after-ms" not in done.headers


def test_attaching_waits_a_moment_so_that_small_files_are_completed_in_the_answer(library: Library) -> None:
    store = library.store()
    file = library.client.vector_stores.files.create(store, file_id=library.upload("apple"))
    assert file.status == "completed"
    made = library.client.vector_stores.create(file_ids=[library.upload("apple"), library.upload("pear")])
    assert (made.status, made.file_counts.completed) == ("completed", 2)


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        (None, {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400}),
        ({"type": "auto"}, {"max_chunk_size_tokens": 800, "chunk_overlap_tokens": 400}),
        (
            {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50}},
            {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 50},
        ),
    ],
)
def test_the_chunking_that_was_used_is_shown_and_never_auto(library: Library, wanted: Any, shown: Any) -> None:
    given = {} if wanted is None else {"chunking_strategy": wanted}
    file = library.add(library.store(), "apple " * 300, **given)
    assert file.chunking_strategy.type == "static"
    assert file.chunking_strategy.static.to_dict() == shown
    count = len(library.client.vector_stores.files.content(file.id, vector_store_id=file.vector_store_id).data)
    assert (count > 1) == (shown["max_chunk_size_tokens"] == 100)


def test_attributes_keep_their_types_are_replaced_and_are_bounded(library: Library) -> None:
    store = library.store()
    given = {"text": "it's", "whole": 7, "part": 0.5, "flag": True}
    file = library.add(store, "apple", attributes=given)
    path = f"/vector_stores/{store}/files/{file.id}"
    raw = library.get(path).json()["attributes"]
    assert raw == given
    assert isinstance(raw["whole"], int)
    updated = library.client.vector_stores.files.update(file.id, vector_store_id=store, attributes={"whole": 8})
    assert updated.attributes == {"whole": 8}
    assert library.search(store, "apple").data[0].attributes == {"whole": 8}
    assert library.post(path, {"attributes": None}).json()["attributes"] == {}
    for bad in ({"a": [1]}, {"a": None}, {"a": "x" * 513}, {"k" * 65: 1}, {str(n): n for n in range(17)}, "x"):
        refused = error(library.post(path, {"attributes": bad}), 400)
        assert refused["param"].startswith("attributes")
    assert error(library.post(path, {}), 400)["param"] == "attributes"


def test_attaching_again_is_no_second_file(library: Library) -> None:
    store, file = library.store(), library.upload("apple")
    client = library.client.vector_stores.files
    first = client.create_and_poll(file, vector_store_id=store, attributes={"n": 1})
    again = client.create(store, file_id=file)
    assert (again.id, again.status, again.attributes) == (first.id, "completed", {"n": 1})
    assert client.create(store, file_id=file, attributes={"n": 2}).attributes == {"n": 2}
    assert library.counts(store)["total"] == 1
    assert library.texts(store, "apple") == ["apple"]


def test_a_removed_file_is_not_found_any_more_and_stays_a_file(library: Library) -> None:
    store, other = library.store(), library.store()
    file = library.add(store, "apple").id
    library.client.vector_stores.files.create_and_poll(file, vector_store_id=other)
    deleted = library.client.vector_stores.files.delete(file, vector_store_id=store)
    assert (deleted.id, deleted.deleted, deleted.object) == (file, True, "vector_store.file.deleted")
    assert library.texts(store, "apple") == []
    assert library.texts(other, "apple") == ["apple"]
    assert library.client.files.retrieve(file).id == file
    path = f"/vector_stores/{store}/files/{file}"
    for reply in (library.get(path), library.delete(path), library.get(f"{path}/content")):
        assert error(reply, 404)["param"] == "file_id"


def test_deleting_a_file_takes_it_out_of_every_store(library: Library) -> None:
    stores = [library.store(), library.store()]
    file = library.upload("apple")
    for store in stores:
        library.client.vector_stores.files.create_and_poll(file, vector_store_id=store)
    library.client.files.delete(file)
    for store in stores:
        assert library.texts(store, "apple") == []
        assert library.counts(store)["total"] == 0


def test_content_shows_the_chunks_and_what_is_asked_for_besides(library: Library) -> None:
    store = library.store()
    file = library.add(store, "apple pie", "pie.txt", attributes={"n": 1})
    path = f"/vector_stores/{store}/files/{file.id}/content"
    plain = library.get(path).json()
    assert (plain["object"], plain["has_more"], plain["next_page"]) == ("vector_store.file_content.page", False, None)
    assert plain["data"] == [
        {"type": "text", "text": "apple pie", "embedding": None, "chunk_metadata": None, "metadata": None}
    ]
    full = library.get(f"{path}?include_embeddings=true&include_metadata=true").json()["data"][0]
    assert len(full["embedding"]) == 64
    assert full["metadata"] == {"n": 1}
    assert (full["chunk_metadata"]["document_id"], full["chunk_metadata"]["source"]) == (file.id, "pie.txt")
    assert library.client.vector_stores.files.content(file.id, vector_store_id=store).data[0].text == "apple pie"
    assert library.get(f"{path}?page=1").json()["data"] == []
    for query, param in (("page=x", "page"), ("include_embeddings=maybe", "include_embeddings")):
        assert error(library.get(f"{path}?{query}"), 400)["param"] == param
    failed = library.add(store, b"", "empty.txt").id
    assert error(library.get(f"/vector_stores/{store}/files/{failed}/content"), 400)["param"] == "file_id"


@behaviour("also-store-names")
def test_filtered_lists_of_files_page_with_honest_cursors(library: Library) -> None:
    store = library.store()
    good = [library.add(store, f"apple {number}").id for number in range(3)]
    bad = [library.add(store, b"", f"empty {number}.txt").id for number in range(2)]
    files = library.client.vector_stores.files
    assert {file.id for file in files.list(store, filter="completed", limit=1)} == set(good)
    assert {file.id for file in files.list(store, filter="failed", limit=1)} == set(bad)
    assert {file.id for file in files.list(store, limit=2)} == {*good, *bad}
    assert list(files.list(store, filter="cancelled")) == []
    path = f"/vector_stores/{store}/files"
    assert library.get(f"{path}?filter=completed&after={bad[0]}").status_code == 200
    for query, param in (("filter=done", "filter"), ("after=file-x", "after"), ("before=it's", "before")):
        assert error(library.get(f"{path}?{query}"), 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "file_id"),
        ({"file_id": ""}, 400, "file_id"),
        ({"file_id": "it's"}, 400, "file_id"),
        ({"file_id": "file-nobody"}, 404, "file_id"),
        ({"file_id": "file-nobody", "attributes": {"a": {}}}, 400, "attributes"),
        ({"file_id": "file-x", "chunking_strategy": {"type": "static"}}, 400, "chunking_strategy.static"),
    ],
)
def test_what_cannot_be_attached_is_refused_by_its_place(library: Library, body: Any, status: int, param: str) -> None:
    assert error(library.post(f"/vector_stores/{library.store()}/files", body), status)["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "file_ids"),
        ({"file_ids": []}, "file_ids"),
        ({"files": []}, "files"),
        ({"file_ids": ["a"], "files": [{"file_id": "a"}]}, "file_ids"),
        ({"file_ids": ["a"] * 2001}, "file_ids"),
        ({"file_ids": ["a", "it's"]}, "file_ids[1]"),
        ({"files": [{"file_id": "a"}, {"attributes": {}}]}, "files[1].file_id"),
        (
            {
                "files": [
                    {
                        "file_id": "a",
                        "chunking_strategy": {
                            "type": "static",
                            "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51},
                        },
                    }
                ]
            },
            "files[0].chunking_strategy.static.chunk_overlap_tokens",
        ),
    ],
)
def test_a_batch_that_cannot_be_is_refused_by_its_place(library: Library, body: Any, param: str) -> None:
    assert error(library.post(f"/vector_stores/{library.store()}/file_batches", body), 400)["param"] == param


def test_each_file_of_a_batch_may_have_attributes_and_chunking_of_its_own(library: Library) -> None:
    store = library.store()
    first, second = library.upload("apple"), library.upload("pear")
    small = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    client = library.client.vector_stores
    batch = client.file_batches.create(
        store,
        files=[{"file_id": first, "attributes": {"n": 1}}, {"file_id": second, "chunking_strategy": small}],
    )
    library.settled(store)
    files = {file.id: file for file in client.file_batches.list_files(batch.id, vector_store_id=store, limit=1)}
    assert files[first].attributes == {"n": 1}
    assert files[second].chunking_strategy.static.max_chunk_size_tokens == 100
    done = client.file_batches.retrieve(batch.id, vector_store_id=store)
    assert (done.status, done.file_counts.completed, done.object) == ("completed", 2, "vector_store.files_batch")


@behaviour("bug-62")
def test_an_embedding_failure_is_the_files_own_is_counted_and_can_be_tried_again(library: Library) -> None:
    store = library.store()
    broken = [True]

    def refuse(request: Received) -> Refuse | None:
        poisoned = any("poison" in text for text in request.body["input"])
        return Refuse(500, {"error": {"message": "out of memory", "type": "x"}}) if poisoned and broken[0] else None

    library.model.embedding = refuse
    ids = [library.upload(text) for text in ("apple", "poison", "pear")]
    batch = library.client.vector_stores.file_batches.create(store, file_ids=ids)
    counts = library.settled(store)
    assert (counts["completed"], counts["failed"], counts["total"]) == (2, 1, 3)
    done = library.client.vector_stores.file_batches.retrieve(batch.id, vector_store_id=store)
    assert (done.status, done.file_counts.failed) == ("completed", 1)
    file = library.client.vector_stores.files.retrieve(ids[1], vector_store_id=store)
    assert (file.status, file.last_error.code) == ("failed", "server_error")
    assert "out of memory" in file.last_error.message
    assert sorted(library.texts(store, "fruit")) == ["apple", "pear"]
    broken[0] = False
    again = library.client.vector_stores.files.create_and_poll(ids[1], vector_store_id=store)
    assert (again.status, again.last_error) == ("completed", None)
    assert library.texts(store, "poison")[0] == "poison"


def test_cancelling_a_batch_stops_what_waits_and_leaves_what_is_done(library: Library) -> None:
    store, gate = library.store(), Gate()
    done = library.add(store, "apple").id
    library.model.embedding = lambda request: gate if "held" in request.body["input"][0] else None
    batches = library.client.vector_stores.file_batches
    waiting = [library.upload(f"held {number}") for number in range(6)]
    batch = batches.create(store, file_ids=[done, *waiting])
    assert batch.status == "in_progress"
    cancelled = batches.cancel(batch.id, vector_store_id=store)
    assert (cancelled.status, cancelled.file_counts.cancelled, cancelled.file_counts.completed) == ("cancelled", 6, 1)
    gate.set()
    library.model.embedding = None
    assert library.add(store, "pear").status == "completed"
    assert library.counts(store)["cancelled"] == 6
    assert sorted(library.texts(store, "held")) == ["apple", "pear"]
    again = library.client.vector_stores.files.create_and_poll(waiting[0], vector_store_id=store)
    assert again.status == "completed"
    finished = batches.create_and_poll(store, file_ids=[done])
    refused = error(library.post(f"/vector_stores/{store}/file_batches/{finished.id}/cancel", {}), 400)
    assert refused["message"].startswith("Cannot cancel")


def test_a_batch_of_strangers_only_has_failed(library: Library) -> None:
    store = library.store()
    batch = library.client.vector_stores.file_batches.create(store, file_ids=["file-a", "file-b"])
    assert (batch.status, batch.file_counts.failed, batch.file_counts.total) == ("failed", 2, 2)
    for path in ("", "/files", "/cancel"):
        url = f"/vector_stores/{store}/file_batches/vsfb_nobody{path}"
        reply = library.post(url, {}) if path == "/cancel" else library.get(url)
        assert error(reply, 404)["param"] == "batch_id"


def test_contextual_chunks_begin_with_what_the_model_wrote(library: Library) -> None:
    store = library.store()
    library.model.script(Reply(text="About an apple pie."))
    chunking = {"type": "contextual", "contextual": {"model_id": "scripted/scripted", "max_chunk_size_tokens": 200}}
    chunking["contextual"]["chunk_overlap_tokens"] = 50  # type: ignore[index]
    reply = library.post(
        f"/vector_stores/{store}/files", {"file_id": library.upload("It needs sugar."), "chunking_strategy": chunking}
    )
    assert reply.json()["status"] == "completed"
    assert reply.json()["chunking_strategy"]["contextual"]["model_id"] == "scripted/scripted"
    assert library.texts(store, "apple") == ["About an apple pie.\n\nIt needs sugar."]
    wanted = {"type": "contextual", "contextual": {"model_id": "local/nobody"}}
    body = {"file_id": library.upload("x"), "chunking_strategy": wanted}
    refused = error(library.post(f"/vector_stores/{store}/files", body), 404)
    assert refused["param"] == "chunking_strategy.contextual.model_id"
