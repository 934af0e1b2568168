"""Plug-ins under vector stores and files: an index, a place for bytes, and the reader of docs/plugins.md as written."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.behaviour.knowledge import FAST, libraries
from tests.plugin_kit import installed
from treadle.app.plugged import PluggedIndex
from treadle.errors import Internal, StorageFault
from treadle.ports import Collection
from treadle.retrieval.in_memory import InMemoryIndex

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
PLACE = Collection("default", "vs_1", 2)

SHELF = """
import msgspec
from treadle.retrieval.in_memory import InMemoryIndex


class Shelf(InMemoryIndex):
    class Config(msgspec.Struct):
        pass

    @classmethod
    async def open(cls, config, services):
        services.on_stop(cls.put_away)
        return cls()

    @staticmethod
    async def put_away():
        print("the shelf is put away")
"""

BOX = """
import msgspec
from treadle.errors import NotFound


class Box:
    kept = {}

    class Config(msgspec.Struct):
        pass

    @classmethod
    async def open(cls, config, services):
        return cls()

    async def put(self, key, parts):
        self.kept[key] = b"".join([part async for part in parts])
        return len(self.kept[key])

    async def read(self, key, start=0, end=None):
        if key not in self.kept:
            raise NotFound("no such blob")
        yield self.kept[key][start:end]

    async def delete(self, key):
        self.kept.pop(key, None)

    async def stored(self, before):
        yield list(self.kept)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_chunks_can_be_kept_by_a_plug_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    installed(tmp_path, monkeypatch, SHELF, {"treadle.vector": {"shelf": "acme_tools:Shelf"}})
    with libraries(tmp_path, "plugins: {allowed: [shelf]}", FAST.replace("{", "{index: shelf, ", 1)) as library:
        store = library.store()
        assert library.add(store, "The filter is cleaned once a month.").status == "completed"
        assert library.texts(store, "filter cleaned") == ["The filter is cleaned once a month."]
        library.client.vector_stores.delete(store)
        assert not (tmp_path / "vectors.sqlite3").exists()
        assert "put away" not in capfd.readouterr().out
    assert capfd.readouterr().out.count("the shelf is put away") == 1


def test_bytes_can_be_kept_by_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, BOX, {"treadle.blobs": {"box": "acme_tools:Box"}})
    with libraries(tmp_path, "plugins: {allowed: [box]}", "files: {blobs: box}", FAST) as library:
        store = library.store()
        found = library.add(store, "The filter is cleaned once a month.")
        assert library.client.files.content(found.id).text == "The filter is cleaned once a month."
        assert library.texts(store, "filter cleaned") == ["The filter is cleaned once a month."]
        library.client.files.delete(found.id)
        assert library.get(f"/files/{found.id}/content").status_code == 404
        from acme_tools import Box  # type: ignore[import-not-found]  # the one that was just installed

        assert Box.kept == {}
        assert not (tmp_path / "blobs").exists()


def test_documents_can_be_read_by_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = next(block for block in blocks("python") if block.startswith("# acme_notebooks.py"))
    points = tomllib.loads(next(block for block in blocks("toml") if "acme_notebooks" in block))["project"]
    installed(tmp_path, monkeypatch, source, points["entry-points"], module="acme_notebooks")
    lines = next(block for block in blocks("yaml") if "extractor" in block)
    cells = [
        {"cell_type": "markdown", "source": ["# Pumps\n", "How they wear."]},
        {"cell_type": "code", "source": "run()"},
    ]
    with libraries(tmp_path, lines) as library:
        store = library.store()
        library.add(store, json.dumps({"cells": cells}), "pumps.ipynb")
        library.add(store, "Pumps are no pomps.", "plain.txt")
        broken = library.add(store, "{", "broken.ipynb")
        assert (broken.status, broken.last_error.message) == ("failed", "The notebook is damaged.")
        found = library.search(store, "pumps wear").data[0]
        assert (found.filename, found.content[0].text) == (
            "pumps.ipynb",
            "# Pumps\n\nHow they wear.\n\n~~~\nrun()\n~~~",
        )
        assert sorted(library.texts(store, "pumps"))[1] == "Pumps are no pomps."


async def test_what_an_index_raises_is_logged_and_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    class Torn(InMemoryIndex):
        async def drop(self, collection: Collection) -> None:
            raise TypeError("a secret")

        async def remove(self, collection: Collection, file: str) -> None:
            raise StorageFault("The shelf is full.")

    index = PluggedIndex("torn", Torn)
    with pytest.raises(Internal) as fault:
        await index.drop(PLACE)
    assert "secret" not in fault.value.message
    assert "TypeError: a secret" in caplog.text
    with pytest.raises(StorageFault, match="The shelf is full"):
        await index.remove(PLACE, "a")
