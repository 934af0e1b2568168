"""The same vector stores on the other indexes: Postgres with pgvector, and Qdrant's engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.kit import error
from tests.behaviour.knowledge import FAST, Library, libraries
from tests.unit.retrieval.conftest import postgres

__all__ = ["postgres"]


@pytest.fixture(params=["pgvector", "qdrant"])
def library(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    url = ":memory:"
    if request.param == "pgvector":
        url = request.getfixturevalue("postgres")
    else:
        pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    knowledge = FAST.replace("{", f"{{index: {request.param}, index_url: '{url}', ", 1)
    with libraries(tmp_path, knowledge) as found:
        yield found


def test_files_go_in_are_found_filtered_and_go_again(library: Library) -> None:
    store, other = library.store(), library.store()
    texts = {"apple.txt": ("apple pie with zz81q", 1), "pear.txt": ("pear tart", 2), "soup.txt": ("leek soup", 3)}
    for name, (text, number) in texts.items():
        assert library.add(store, text, name, attributes={"n": number}).status == "completed"
    library.add(other, "apple of another store")
    for mode in ("vector", "keyword", "hybrid"):
        found = library.search(store, "zz81q apple", extra_body={"search_mode": mode}).data
        assert found[0].filename == "apple.txt", mode
        assert all(0 <= one.score <= 1 for one in found)
        kept = library.search(
            store, "apple", filters={"type": "gte", "key": "n", "value": 2}, extra_body={"search_mode": mode}
        )
        assert "apple.txt" not in {one.filename for one in kept.data}
    file = next(one.file_id for one in library.search(store, "leek soup").data)
    content = library.client.vector_stores.files.content(file, vector_store_id=store)
    assert [entry.text for entry in content.data] == ["leek soup"]
    library.client.vector_stores.files.delete(file, vector_store_id=store)
    assert "leek soup" not in library.texts(store, "leek soup")
    library.client.vector_stores.delete(store)
    assert error(library.post(f"/vector_stores/{store}/search", {"query": "apple"}), 404)
    assert library.texts(other, "apple") == ["apple of another store"]


def test_an_index_that_cannot_be_reached_is_a_503_and_ends_no_file_for_good(tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    with libraries(tmp_path, "knowledge: {index: qdrant, index_url: 'http://127.0.0.1:9', wait_seconds: 0}") as library:
        store = library.store()
        file = library.upload("apple")
        attached = library.client.vector_stores.files.create(store, file_id=file)
        assert attached.status == "in_progress"
        assert error(library.post(f"/vector_stores/{store}/search", {"query": "apple"}), 503)["code"] == "storage_error"
        assert library.client.vector_stores.files.retrieve(file, vector_store_id=store).status == "in_progress"
