"""Vector stores through the official client: what they show, how they are listed, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.behaviour.kit import error
from tests.behaviour.knowledge import Library, library, shared_library
from tests.behaviour.manifest import behaviour
from treadle.testing.turns import Refuse
from treadle.testing.upstream import Received

__all__ = ["library", "shared_library"]

DAY = 86_400


def test_a_new_store_shows_all_that_clients_read(library: Library) -> None:
    before = int(time.time())
    raw = library.post("/vector_stores", {}).json()
    assert raw["id"].startswith("vs_")
    assert raw["name"] == ""
    assert raw["status"] == "completed"
    assert raw["file_counts"] == {"in_progress": 0, "completed": 0, "failed": 0, "cancelled": 0, "total": 0}
    assert (raw["usage_bytes"], raw["metadata"], raw["expires_at"]) == (0, {}, None)
    assert "expires_after" not in raw
    assert before <= raw["created_at"] == raw["last_active_at"]
    assert library.get(f"/vector_stores/{raw['id']}").json() == raw
    assert library.client.vector_stores.retrieve(raw["id"]).name == ""


def test_a_store_keeps_what_it_was_made_with_and_can_be_changed(library: Library) -> None:
    stores = library.client.vector_stores
    made = stores.create(
        name="Recipes", metadata={"kind": "food"}, expires_after={"anchor": "last_active_at", "days": 7}
    )
    assert (made.name, made.metadata, made.expires_after.days) == ("Recipes", {"kind": "food"}, 7)
    assert made.expires_at == made.last_active_at + 7 * DAY
    library.sql("UPDATE vector_stores SET last_active_at = last_active_at - 100 WHERE id = ?", made.id)
    changed = stores.update(made.id, name="Meals")
    assert (changed.name, changed.metadata, changed.expires_after.days) == ("Meals", {"kind": "food"}, 7)
    assert changed.last_active_at >= made.last_active_at
    changed = stores.update(made.id, metadata={}, expires_after=None)
    assert (changed.name, changed.metadata, changed.expires_after, changed.expires_at) == ("Meals", {}, None, None)
    assert stores.retrieve(made.id) == changed


def test_a_deleted_store_is_gone(library: Library) -> None:
    store = library.store()
    deleted = library.client.vector_stores.delete(store)
    assert (deleted.id, deleted.deleted, deleted.object) == (store, True, "vector_store.deleted")
    for reply in (library.get(f"/vector_stores/{store}"), library.delete(f"/vector_stores/{store}")):
        assert error(reply, 404)["param"] == "vector_store_id"


@behaviour("also-store-names")
def test_two_stores_may_have_the_same_name_and_ids_with_odd_characters_are_just_not_there(library: Library) -> None:
    first, second = library.store(name="it's.the/same"), library.store(name="it's.the/same")
    assert first != second
    library.client.vector_stores.delete(first)
    assert library.client.vector_stores.retrieve(second).name == "it's.the/same"
    for odd in ("vs_1.2", "it's", "a%20b", "%00", "...", "%22", "vs_" + "x" * 300, "vs%C3%A4", "a;b"):
        for path in ("", "/files", "/files/x.y'z", "/files/x/content", "/file_batches/it's", "/file_batches/x/files"):
            assert library.get(f"/vector_stores/{odd}{path}").status_code in (400, 404), (odd, path)
        assert library.post(f"/vector_stores/{odd}/search", {"query": "x"}).status_code == 404
        assert library.delete(f"/vector_stores/{odd}").status_code == 404
    for odd in ("x.y", "it's", "%00", "%22x%22"):
        assert library.get(f"/vector_stores/{second}/files/{odd}").status_code == 404
        assert library.delete(f"/vector_stores/{second}/files/{odd}").status_code == 404


def test_stores_are_listed_newest_first_in_pages_that_the_client_follows(library: Library) -> None:
    made = [library.store(name=f"listed {number}") for number in range(5)]
    listed = [store.id for store in library.client.vector_stores.list(limit=2) if store.name.startswith("listed")]
    assert listed == made[::-1]
    rising = [store.id for store in library.client.vector_stores.list(order="asc", limit=3, after=made[1])]
    assert rising[:3] == made[2:]
    page = library.get(f"/vector_stores?limit=2&before={made[2]}").json()
    assert [store["id"] for store in page["data"]] == [made[4], made[3]]
    assert (page["first_id"], page["last_id"], page["object"]) == (made[4], made[3], "list")
    empty = library.get(f"/vector_stores?order=asc&after={made[4]}").json()
    assert (empty["data"], empty["first_id"], empty["last_id"], empty["has_more"]) == ([], "", "", False)
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("order=up", "order"), ("after=vs_0", "after")):
        assert error(library.get(f"/vector_stores?{query}"), 400)["param"] == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": 5}, "name"),
        ({"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor"),
        ({"expires_after": {"anchor": "last_active_at", "days": 0}}, "expires_after.days"),
        ({"expires_after": {"anchor": "last_active_at", "days": 366}}, "expires_after.days"),
        ({"expires_after": {"days": 3}}, "expires_after.anchor"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"file_ids": ["x"] * 501}, "file_ids"),
        ({"file_ids": ["ok", "it's"]}, "file_ids[1]"),
        ({"chunking_strategy": {"type": "magic"}}, "chunking_strategy.type"),
        (
            {"chunking_strategy": {"type": "static", "static": {"max_chunk_size_tokens": 50}}},
            "chunking_strategy.static.max_chunk_size_tokens",
        ),
        (
            {
                "chunking_strategy": {
                    "type": "static",
                    "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 101},
                }
            },
            "chunking_strategy.static.chunk_overlap_tokens",
        ),
        (
            {"chunking_strategy": {"type": "contextual", "contextual": {"chunk_overlap_tokens": 700}}},
            "chunking_strategy.contextual.chunk_overlap_tokens",
        ),
        (
            {"chunking_strategy": {"type": "contextual", "contextual": {"context_prompt": "{{CHUNK_CONTENT}}"}}},
            "chunking_strategy.contextual.context_prompt",
        ),
        ({"chunking_strategy": {"type": "contextual", "contextual": {}}}, "chunking_strategy.contextual.model_id"),
        ({"embedding_dimension": 0}, "embedding_dimension"),
        ({"embedding_dimension": "0"}, "embedding_dimension"),
        ({"embedding_dimension": "many"}, "embedding_dimension"),
    ],
)
def test_a_request_that_cannot_be_is_refused_by_its_place(library: Library, body: Any, param: str) -> None:
    assert error(library.post("/vector_stores", body), 400)["param"] == param


@behaviour("also-embedding-model")
def test_an_embedding_model_that_is_unknown_or_of_other_size_fails_at_creation(library: Library) -> None:
    def refuse(request: Received) -> Refuse | None:
        if request.body["model"] == "unknown":
            return Refuse(404, {"error": {"message": "no such model", "type": "x", "code": "model_not_found"}})
        if request.body.get("dimensions") == 100:
            return Refuse(400, {"error": {"message": "cannot be shortened", "type": "invalid_request_error"}})
        return None

    library.model.embedding = refuse
    before = library.get("/vector_stores?limit=100").json()["data"]
    found = error(library.post("/vector_stores", {"embedding_model": "scripted/unknown"}), 404)
    assert (found["param"], found["code"]) == ("embedding_model", "model_not_found")
    assert error(library.post("/vector_stores", {"embedding_dimension": 100}), 400)["param"] == "embedding_dimension"
    assert library.get("/vector_stores?limit=100").json()["data"] == before
    made = library.post("/vector_stores", {"embedding_dimension": "32", "provider_id": "faiss"}).json()
    assert (made["embedding_dimension"], made["embedding_model"]) == (32, "scripted/words")
    assert made["metadata"] == {"embedding_dimension": "32", "provider_id": "faiss"}
    library.add(made["id"], "apple pie")
    assert library.texts(made["id"], "apple") == ["apple pie"]


def test_an_embedding_model_named_in_the_metadata_is_used_if_there_is_one_of_that_name(library: Library) -> None:
    named = library.post("/vector_stores", {"metadata": {"embedding_model": "scripted/other"}}).json()
    assert named["embedding_model"] == "scripted/other"


def test_an_expired_store_says_so_refuses_searches_and_comes_back_with_an_update(library: Library) -> None:
    store = library.store(expires_after={"anchor": "last_active_at", "days": 1})
    library.add(store, "apple pie")
    library.sql("UPDATE vector_stores SET last_active_at = last_active_at - ? WHERE id = ?", DAY + 1, store)
    assert library.client.vector_stores.retrieve(store).status == "expired"
    for path, body in (("search", {"query": "apple"}), ("files", {"file_id": library.upload("x")})):
        refused = error(library.post(f"/vector_stores/{store}/{path}", body), 400)
        assert (refused["code"], refused["param"]) == ("vector_store_expired", "vector_store_id")
    assert library.client.vector_stores.update(store, name="again").status == "completed"
    assert library.texts(store, "apple") == ["apple pie"]


def test_searching_puts_the_expiry_off(library: Library) -> None:
    store = library.store(expires_after={"anchor": "last_active_at", "days": 1})
    library.sql("UPDATE vector_stores SET last_active_at = last_active_at - 3600 WHERE id = ?", store)
    before = library.client.vector_stores.retrieve(store)
    library.search(store, "apple")
    after = library.client.vector_stores.retrieve(store)
    assert after.last_active_at >= before.last_active_at + 3600
    assert after.expires_at == after.last_active_at + DAY


def test_files_named_at_creation_are_attached_and_missing_ones_fail_alone(library: Library) -> None:
    files = [library.upload(f"apple number {number}") for number in range(3)]
    store = library.client.vector_stores.create(file_ids=[*files, "file-nobody"]).id
    counts = library.settled(store)
    assert (counts["completed"], counts["failed"], counts["total"]) == (3, 1, 4)
    (failed,) = library.client.vector_stores.files.list(store, filter="failed")
    assert (failed.id, failed.last_error.code) == ("file-nobody", "invalid_file")
    assert library.client.vector_stores.files.delete("file-nobody", vector_store_id=store).deleted
    assert library.counts(store)["total"] == 3
