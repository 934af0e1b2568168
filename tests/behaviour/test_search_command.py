"""`treadle search`: passages as people and scripts read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.behaviour.ingest_kit import Shell, at
from tests.behaviour.knowledge import Library, library, shared_library
from tests.unit.retrieval.documents_kit import pdf
from treadle.testing.gates import Gate

__all__ = ["library", "shared_library"]


@pytest.fixture
def shell(library: Library, tmp_path: Path) -> Shell:
    return at(library.url, tmp_path)


def filled(library: Library, name: str) -> str:
    store = library.store(name=name)
    library.add(store, pdf(["", "The heron waits."], [("Birds", 1)]), "birds.pdf", attributes={"year": 2025, "id": "7"})
    library.add(store, "# Beasts\n\nThe otter and the heron swim.", "beasts.md", attributes={"year": 2026, "id": 7})
    return store


def test_passages_show_score_file_page_and_section(library: Library, shell: Shell) -> None:
    filled(library, "plain")
    done = shell.run("search", "plain", "where", "is", "the", "heron?", "--mode", "keyword")
    heads = [line.split("  ") for line in done.out.splitlines() if line[:2] in ("1.", "2.")]
    assert sorted(head[1:] for head in heads) == [["beasts.md", "Beasts"], ["birds.pdf", "page 2", "Birds"]]
    assert all(0 <= float(head[0][3:]) <= 1 for head in heads)
    assert "\n   The heron waits.\n" in f"\n{done.out}"
    assert done.err == ""


def test_limit_filters_and_modes_are_handed_on(library: Library, shell: Shell) -> None:
    store = filled(library, "handed")
    asked = len(library.model.other_requests)

    def names(*given: str) -> list[str]:
        done = shell.run("search", store, "heron", "--mode", "keyword", "--json", *given)
        return sorted(found["filename"] for found in json.loads(done.out)["data"])

    assert names() == ["beasts.md", "birds.pdf"]
    assert len(names("--limit", "1")) == 1
    assert names("--filter", "year=2026") == ["beasts.md"]
    assert names("--filter", "id=7") == ["beasts.md"]
    assert names("--filter", 'id="7"') == ["birds.pdf"]
    assert names("--filter", "year=2026", "--filter", 'id="7"') == []
    assert names("--filter", '{"type": "lt", "key": "year", "value": 2026}') == ["birds.pdf"]
    assert len(library.model.other_requests) == asked, "a search by words was embedded"
    shell.run("search", store, "heron", "--mode", "vector")
    assert len(library.model.other_requests) > asked


def test_nothing_found_is_no_fault(library: Library, shell: Shell) -> None:
    filled(library, "little")
    assert shell.run("search", "little", "xylophone", "--mode", "keyword").out == "Nothing was found.\n"


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["wrnog", "heron"], "error: no vector store is called wrnog; did you mean wrong?", 1),
        (["vs_gone", "heron"], "error: no vector store has the id vs_gone; ", 1),
        (["vs_/../..", "heron"], "error: no vector store has the id vs_/../..; ", 1),
        (["bell\a\x1b[2J", "heron"], "error: no vector store is called bell\\x07\\x1b[2J; ", 1),
        (["wrong", " "], "is empty", 2),
        (["wrong", b"\xff"], "is not UTF-8 text", 2),
        (["wrong", "heron", "--limit", "0"], "--limit: between 1 and 50", 2),
        (["wrong", "heron", "--limit", "51"], "--limit: between 1 and 50", 2),
        (["wrong", "heron", "--mode", "magic"], "invalid choice", 2),
        (["wrong", "heron", "--filter", "year"], "expected key=value", 2),
        (["wrong", "heron", "--filter", "{"], "is not valid JSON", 2),
        (["wrong", "heron", "--filter", '{"a": "\\ud800"}'], "half of a character", 2),
        (["wrong", "heron", "--filter", '{"type": "magic"}'], "error: Invalid value for 'filters.type'", 1),
        (["wrong", "h" * 40_000], "error: Invalid value for 'query'", 1),
        (["wrong", "heron", "--url", "http://127.0.0.1:1"], "error: http://127.0.0.1:1 cannot be reached", 1),
    ],
)
def test_what_is_wrong_is_said(
    library: Library, shell: Shell, arguments: list[str | bytes], said: str, code: int
) -> None:
    if not [store for store in library.client.vector_stores.list(limit=100) if store.name == "wrong"]:
        library.store(name="wrong")
    done = shell.run("search", *arguments, code=code)
    assert said in done.err
    assert done.out == ""


def test_what_documents_hold_cannot_write_to_the_terminal(library: Library, shell: Shell) -> None:
    store = library.store(name="hostile")
    library.add(store, "The heron\x1b]0;owned\x07 \x1b[2Jwaits\u202e.", "a\u200f.md")
    done = shell.run("search", store, "heron", "--mode", "keyword")
    assert not set(done.out) & set("\x1b\x07\u202e\u200f")
    assert "waits." in done.out


def test_a_terminal_gets_lines_that_fit(library: Library, shell: Shell) -> None:
    store = library.store(name="wide")
    library.add(store, "The heron waits for fish, " * 30)
    done = shell.on_terminal("search", store, "heron", columns=50)
    lines = done.err.splitlines()
    assert len(lines) > 15
    assert max(map(len, lines)) <= 50
    assert max(map(len, shell.run("search", store, "heron").out.splitlines())) > 700


def test_ctrl_c_is_no_traceback(library: Library, shell: Shell) -> None:
    store = filled(library, "hanging")
    gate, asked = Gate(), Gate()

    def hold(request: object) -> Gate:
        asked.set()
        return gate

    library.model.embedding = hold
    running = shell.begin("search", store, "heron")
    asked.wait_blocking()
    running.send_signal(2)
    out, err = running.communicate(timeout=20)
    gate.set()
    assert (running.returncode, out, err) == (130, b"", b"")
