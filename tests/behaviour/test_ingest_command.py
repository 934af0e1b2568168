"""`treadle ingest` against a running server: what is brought in, what is left alone, what fails, and how it says so."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.behaviour.ingest_kit import PATIENCE, Shell, at, interrupted
from tests.behaviour.knowledge import Library, libraries, library, shared_library
from tests.unit.retrieval.documents_kit import archive, docx, pdf, png
from treadle.testing.gates import Gate
from treadle.testing.turns import Refuse
from treadle.testing.upstream import Received

__all__ = ["library", "shared_library"]

WORDS = {"search_mode": "keyword"}
BROKEN_PDF = b"%PDF-1.5 this is cut o"


@pytest.fixture
def shell(library: Library, tmp_path: Path) -> Shell:
    return at(library.url, tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Library]:
    """A server for one test, which looks at all that is on it."""
    data = tmp_path / "data"
    data.mkdir()
    with libraries(data, "knowledge: {embedding_retries: 0, wait_seconds: 0.2}") as found:
        yield found


def written(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def store_of(library: Library, name: str) -> Any:
    (found,) = [store for store in library.client.vector_stores.list(limit=100) if store.name == name]
    return found


def paths_in(library: Library, name: str) -> list[str]:
    store = store_of(library, name).id
    return sorted(file.attributes["path"] for file in library.client.vector_stores.files.list(store, limit=100))


def all_files(library: Library) -> set[str]:
    return {file.id for file in library.client.files.list()}


def test_a_folder_becomes_a_store_that_can_be_searched(library: Library, shell: Shell) -> None:
    report = docx(lambda document: document.add_paragraph("The walrus rests on ice."))
    written(
        shell.folder / "docs",
        {"a.md": "# Birds\n\nThe heron waits.", "deep/er/b.pdf": pdf(["", "The otter swims."]), "c.docx": report},
    )
    done = shell.run("ingest", "docs", "--store", "folder")
    store = store_of(library, "folder")
    assert done.out.startswith(f"folder ({store.id}): 3 indexed (")
    assert sorted(done.err.splitlines()) == sorted(
        [
            f"Store folder (new), at {library.url.removesuffix('/v1')}",
            "indexed docs/a.md",
            "indexed docs/c.docx",
            "indexed docs/deep/er/b.pdf",
        ]
    )
    assert "\r" not in done.err
    assert paths_in(library, "folder") == ["docs/a.md", "docs/c.docx", "docs/deep/er/b.pdf"]
    (found,) = library.search(store.id, "otter", extra_body=WORDS).data
    assert (found.filename, found.page) == ("b.pdf", 2)


def test_a_second_run_indexes_nothing(library: Library, shell: Shell) -> None:
    written(shell.folder / "docs", {"a.md": "The heron waits.", "b.md": "The otter swims."})
    shell.run("ingest", "docs", "--store", "twice")
    files, asked = all_files(library), len(library.model.other_requests)
    # The same files, however one comes to them.
    for paths in (["docs"], ["docs/b.md", "docs", "docs/"], [str(shell.folder / "docs" / "a.md"), "docs/../docs"]):
        done = shell.run("ingest", *paths, "--store", "twice")
        assert "2 unchanged" in done.out
        assert done.err.count("\n") == 1
    assert all_files(library) == files
    assert len(library.model.other_requests) == asked, "something was embedded again"


def test_a_changed_file_takes_the_place_of_the_old_one(library: Library, shell: Shell) -> None:
    written(shell.folder / "docs", {"a.md": "The heron waits.", "b.md": "The otter swims."})
    shell.run("ingest", "docs", "--store", "changed")
    files = all_files(library)
    written(shell.folder / "docs", {"a.md": "The walrus rests."})
    done = shell.run("ingest", "docs", "--store", "changed", "--json")
    assert (done.has("replaced"), done.has("unchanged")) == (["docs/a.md"], ["docs/b.md"])
    store = store_of(library, "changed").id
    assert library.texts(store, "heron", extra_body=WORDS) == []
    assert library.texts(store, "walrus", extra_body=WORDS) == ["The walrus rests."]
    assert len(all_files(library)) == len(files)
    assert len(all_files(library) - files) == 1


def test_damaged_files_fail_with_the_servers_reason_and_leave_nothing(library: Library, shell: Shell) -> None:
    files = all_files(library)
    written(
        shell.folder / "docs",
        {"good.md": "The heron waits.", "bad.pdf": BROKEN_PDF, "bad.docx": archive({"word/document.xml": b"<"})},
    )
    done = shell.run("ingest", "docs", "--store", "damaged", code=1)
    assert "error: docs/bad.pdf: The PDF is damaged" in done.err
    assert "error: docs/bad.docx: " in done.err
    assert "1 indexed, 2 failed" in done.out
    assert paths_in(library, "damaged") == ["docs/good.md"]
    assert len(all_files(library) - files) == 1
    again = shell.run("ingest", "docs", "--store", "damaged", "--json", code=1)
    assert (again.has("unchanged"), again.has("failed")) == (["docs/good.md"], ["docs/bad.docx", "docs/bad.pdf"])


def test_the_version_before_a_damaged_one_stays(library: Library, shell: Shell) -> None:
    written(shell.folder, {"a.pdf": pdf(["The heron waits."])})
    shell.run("ingest", "a.pdf", "--store", "kept")
    written(shell.folder, {"a.pdf": BROKEN_PDF})
    shell.run("ingest", "a.pdf", "--store", "kept", code=1)
    assert library.texts(store_of(library, "kept").id, "heron", extra_body=WORDS) == ["The heron waits."]
    written(shell.folder, {"a.pdf": pdf(["The walrus rests."])})
    assert "1 replaced" in shell.run("ingest", "a.pdf", "--store", "kept").out


def test_what_is_no_document_is_counted_with_its_reason(library: Library, shell: Shell) -> None:
    docs = written(
        shell.folder / "docs",
        {
            "a.md": "The heron waits.",
            ".git/config": "x",
            ".hidden.md": "x",
            "empty.md": b"",
            "x.zip": b"PK",
            "y.MP4": b"x",
            "noise.dat": bytes(range(256)) * 8,
            "photo.png": png(),
        },
    )
    (docs / "round").symlink_to(docs)
    (docs / "up").symlink_to("..")
    (docs / "nowhere").symlink_to("gone")
    (docs / "same.md").symlink_to("a.md")
    os.mkfifo(docs / "pipe")
    done = shell.run("ingest", "docs", "--store", "skipped", "--json")
    assert done.has("indexed") == ["docs/a.md"]
    reasons = {skip["reason"]: skip["count"] for skip in done.json["skips"]}
    assert reasons.pop("of kinds that are not read (.zip, .mp4)") == 2
    refused = {reason: count for reason, count in reasons.items() if reason.startswith("refused (")}
    assert sum(refused.values()) == 2
    assert {reason: count for reason, count in reasons.items() if reason not in refused} == {
        "hidden": 2,
        "empty": 1,
        "special (a pipe, socket or device)": 1,
        "linked to nothing": 1,
        "linked in a circle": 1,
        "linked to what is there anyway": 2,
    }
    assert done.json["skipped"] == 12
    assert "skipped 12: 2 " in shell.run("ingest", "docs", "--store", "skipped").out
    assert paths_in(library, "skipped") == ["docs/a.md"]


@pytest.mark.parametrize(("name", "content"), [("x.zip", archive({"a": b"b"})), ("empty.md", b""), (".hid", b"\0\1")])
def test_a_file_that_is_named_itself_is_tried_and_may_fail(
    library: Library, shell: Shell, name: str, content: bytes
) -> None:
    written(shell.folder, {name: content})
    done = shell.run("ingest", name, "--store", "named", code=1)
    assert f"error: {name}: " in done.err


def test_a_document_that_is_something_else_fails_in_a_folder_too(library: Library, shell: Shell) -> None:
    written(shell.folder / "docs", {"report.pdf": bytes(range(256)) * 8})
    assert "error: docs/report.pdf: Files of this type" in shell.run("ingest", "docs", "--store", "else", code=1).err


def test_names_of_all_kinds(library: Library, shell: Shell) -> None:
    names = [
        b'quo"te.md',
        b"new\nline.md",
        b"per%22cent.md",
        "größe 漢.md".encode(),
        b"bad\xff.md",
        b"n" * 240 + b".md",
    ]
    for number, name in enumerate(names):
        (shell.folder / os.fsdecode(name)).write_bytes(b"Document %d about herons." % number)
    deep = shell.folder.joinpath(*["d" * 200] * 3)
    deep.mkdir(parents=True)
    (deep / "a.md").write_text("Far down.")
    done = shell.run("ingest", ".", "--store", "names")
    assert "indexed new\\nline.md" in done.err
    assert "7 indexed" in done.out
    kept = paths_in(library, "names")
    assert {'quo"te.md', "new\nline.md", "per%22cent.md", "größe 漢.md"} < set(kept)
    assert [path for path in kept if path.startswith("bad\\xff.md#")]
    assert max(len(path) for path in kept) == 512
    assert "7 unchanged" in shell.run("ingest", ".", "--store", "names").out
    filenames = {found.filename for found in library.search(store_of(library, "names").id, "herons").data}
    assert {'quo"te.md', "newline.md", "größe 漢.md", "bad\ufffd.md"} < filenames


def test_paths_that_lead_nowhere_fail_and_the_others_are_brought_in(library: Library, shell: Shell) -> None:
    written(shell.folder, {"a.md": "The heron waits."})
    done = shell.run("ingest", "gone", "a.md", "", "a.md/b", "/dev/null", "--store", "nowhere", code=1)
    errors = sorted(line for line in done.err.splitlines() if line.startswith("error: "))
    assert errors == [
        "error: /dev/null: is neither a file nor a folder",
        "error: : an empty path names nothing",
        "error: a.md/b: Not a directory",
        "error: gone: there is no such file or folder",
    ]
    assert "1 indexed, 4 failed" in done.out


def test_what_may_not_be_read_fails(library: Library, shell: Shell) -> None:
    docs = written(shell.folder / "docs", {"a.md": "The heron waits.", "b.md": "x", "c/d.md": "x"})
    for path in (docs / "b.md", docs / "c"):
        path.chmod(0)
    if os.access(docs / "b.md", os.R_OK):
        pytest.skip("this user may read everything")
    try:
        done = shell.run("ingest", "docs", "--store", "rights", code=1)
    finally:
        (docs / "c").chmod(stat.S_IRWXU)
    assert "error: docs/b.md: Permission denied" in done.err
    assert f"error: {docs / 'c'}: Permission denied" in done.err
    assert "1 indexed, 2 failed" in done.out


def test_nothing_to_index_makes_no_store_and_asks_no_server(shell: Shell) -> None:
    (shell.folder / "empty").mkdir()
    nobody = Shell(shell.folder, {"TREADLE_URL": "http://127.0.0.1:1"})
    done = nobody.run("ingest", "empty", "--store", "none")
    assert (done.out, done.err) == ("There is nothing to index.\n", "")
    assert nobody.run("ingest", "empty", "--store", "none", "--json").json["store"] is None


def test_stores_are_known_by_id_and_names_that_two_have_are_refused(library: Library, shell: Shell) -> None:
    written(shell.folder, {"a.md": "The heron waits."})
    first, second = library.store(name="double"), library.store(name="double")
    done = shell.run("ingest", "a.md", "--store", "double", code=1)
    assert "more than one vector store is called double" in done.err
    assert first in done.err
    assert second in done.err
    assert f"double ({second}): 1 indexed" in shell.run("ingest", "a.md", "--store", second).out
    assert library.counts(first)["total"] == 0
    unknown = shell.run("ingest", "a.md", "--store", "vs_gone", code=1)
    assert "error: no vector store has the id vs_gone; " in unknown.err
    assert "vs_gone" not in {store.name for store in library.client.vector_stores.list(limit=100)}


def test_a_store_that_has_expired_is_refused_before_anything_is_sent(library: Library, shell: Shell) -> None:
    written(shell.folder, {"a.md": "The heron waits."})
    store = library.store(name="expired", expires_after={"anchor": "last_active_at", "days": 1})
    library.sql("UPDATE vector_stores SET last_active_at = 1 WHERE id = ?", store)
    files = all_files(library)
    done = shell.run("ingest", "a.md", "--store", "expired", code=1)
    assert f"error: the vector store {store} has expired" in done.err
    assert all_files(library) == files


def test_names_of_stores_of_any_length_and_kind(library: Library, shell: Shell) -> None:
    written(shell.folder, {"a.md": "The heron waits."})
    shell.run("ingest", "a.md", "--store", "n" * 300)
    assert paths_in(library, "n" * 300) == ["a.md"]
    assert "length <= 1024" in shell.run("ingest", "a.md", "--store", "n" * 2000, code=1).err
    assert "is not UTF-8 text" in shell.run("ingest", "a.md", "--store", b"bad\xff", code=2).err
    assert "is empty" in shell.run("ingest", "a.md", "--store", " ", code=2).err


def test_two_who_make_the_same_store_at_once_share_it(own: Library, tmp_path: Path) -> None:
    shell = at(own.url, tmp_path / "here")
    written(shell.folder, {"a.md": "The heron waits."})
    running = [shell.begin("ingest", "a.md", "--store", "shared") for _ in range(3)]
    for one in running:
        _, err = one.communicate(timeout=PATIENCE)
        assert one.returncode == 0, err
    shell.run("ingest", "a.md", "--store", "shared")
    assert own.counts(store_of(own, "shared").id)["total"] == 1
    assert len(all_files(own)) == 1


def test_attributes_are_kept_and_can_be_added_without_indexing_again(library: Library, shell: Shell) -> None:
    written(shell.folder, {"a.md": "The heron waits."})
    given = [
        "--attribute",
        "year=2026",
        "--attribute",
        "open=true",
        "--attribute",
        'code="007"',
        "--attribute",
        "t=a=b",
    ]
    shell.run("ingest", "a.md", "--store", "marked", *given)
    store = store_of(library, "marked").id
    asked = len(library.model.other_requests)
    assert "1 replaced" in shell.run("ingest", "a.md", "--store", "marked", "--attribute", "year=2027").out
    assert len(library.model.other_requests) == asked
    (file,) = library.client.vector_stores.files.list(store)
    assert len(file.attributes.pop("sha256")) == 64
    assert file.attributes == {"path": "a.md", "year": 2027, "open": True, "code": "007", "t": "a=b"}
    assert "1 unchanged" in shell.run("ingest", "a.md", "--store", "marked", "--attribute", "year=2027").out


def test_other_sizes_of_chunks_cut_files_anew(library: Library, shell: Shell) -> None:
    written(shell.folder, {"a.md": " ".join(f"Heron {n} waits." for n in range(200))})
    shell.run("ingest", "a.md", "--store", "cut")
    store = store_of(library, "cut").id
    sized = ("ingest", "a.md", "--store", "cut", "--chunk-tokens", "100", "--overlap-tokens", "0")
    assert "1 replaced" in shell.run(*sized).out
    assert "1 unchanged" in shell.run(*sized).out
    assert "1 unchanged" in shell.run("ingest", "a.md", "--store", "cut").out
    (file,) = library.client.vector_stores.files.list(store)
    assert len(library.client.vector_stores.files.content(file.id, vector_store_id=store).data) > 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--chunk-tokens", "99"], "--chunk-tokens: between 100 and 4096"),
        (["--overlap-tokens", "9"], "--overlap-tokens goes with --chunk-tokens"),
        (["--chunk-tokens", "200", "--overlap-tokens", "101"], "--overlap-tokens: at most half"),
        (["--attribute", "year"], "expected key=value"),
        (["--attribute", f"{'k' * 65}=1"], "a key has at most 64 characters"),
        (["--attribute", f"k={'v' * 513}"], "a value has at most 512 characters"),
        (["--attribute", "path=x"], "is kept by this command itself"),
        ([part for n in range(15) for part in ("--attribute", f"k{n}=1")], "at most 14 of them"),
        (["--base", "gone"], "--base: gone is not a folder"),
    ],
)
def test_arguments_that_cannot_be_are_said_before_anything_is_done(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    shell = Shell(tmp_path, {"TREADLE_URL": "http://127.0.0.1:1"})
    written(tmp_path, {"a.md": "x"})
    assert said in shell.run("ingest", "a.md", "--store", "s", *arguments, code=2).err


def test_paths_are_relative_to_a_base_that_can_be_named(library: Library, shell: Shell) -> None:
    written(shell.folder / "docs", {"a.md": "The heron waits."})
    shell.run("ingest", "docs", "--store", "based", "--base", "docs")
    inside = Shell(shell.folder / "docs", shell.variables)
    assert "1 unchanged" in inside.run("ingest", ".", "--store", "based").out
    assert paths_in(library, "based") == ["a.md"]


def test_a_terminal_shows_one_line_that_is_drawn_again(library: Library, shell: Shell) -> None:
    gate = Gate()
    seen = 0

    def hold(request: Received) -> Gate | None:
        nonlocal seen
        seen += 1
        return gate if seen == 3 else None

    shell.run("ingest", written(shell.folder, {"first.md": "x"}).as_posix(), "--store", "drawn")
    written(shell.folder / "docs", {f"{'long-name-' * 8}{n}.md": f"The heron {n} waits." for n in range(4)})
    written(shell.folder / "docs", {"bad.pdf": BROKEN_PDF})
    library.model.embedding = hold

    def told(sent: bytes) -> bool:
        if b" 4/5 " in sent:
            gate.set()
        return False

    done = shell.on_terminal("ingest", "docs", "--store", "drawn", columns=60, told=told)
    assert done.code == 1
    drawn = [line for part in done.err.split("\n") for line in part.split("\r") if line.startswith("[")]
    assert any(line.startswith("[###########...] 4/5  80% 0:0") for line in drawn), drawn
    assert any(", 1 failed  …" in line and line.rstrip().endswith(".md") for line in drawn), drawn
    assert max(map(len, drawn)) < 60
    assert "\x1b" not in done.err
    assert "error: docs/bad.pdf: The PDF is damaged" in done.err
    assert "4 indexed, 1 failed" in done.err.splitlines()[-1]


def test_ctrl_c_keeps_what_is_done_and_says_what_it_is(own: Library, tmp_path: Path) -> None:
    shell = at(own.url, tmp_path / "here")
    written(shell.folder / "docs", {f"{n}.md": f"The heron {n} waits." for n in range(9)})
    gate = Gate()
    own.model.embedding = lambda request: gate if b"heron 2" in request.raw else None
    running = shell.begin("ingest", "docs", "--store", "broken-off", "--json")
    assert running.stderr is not None
    said = b""
    while said.count(b"indexed") < 8:
        said += running.stderr.readline()
    done = interrupted(running)
    gate.set()
    assert done.code == 130
    found = done.json
    assert (found["indexed"], found["underway"], found["left"], found["interrupted"]) == (8, 1, 0, True)
    own.settled(store_of(own, "broken-off").id)
    again = shell.run("ingest", "docs", "--store", "broken-off")
    assert "9 unchanged" in again.out
    assert len(all_files(own)) == 9


def test_ctrl_c_on_a_terminal_while_all_hangs(own: Library, tmp_path: Path) -> None:
    shell = at(own.url, tmp_path / "here")
    written(shell.folder / "docs", {f"{n}.md": f"The heron {n} waits." for n in range(9)})
    shell.run("ingest", str(shell.folder / "docs" / "0.md"), "--store", "hangs")
    gate = Gate()
    own.model.embedding = lambda request: gate
    done = shell.on_terminal("ingest", "docs", "--store", "hangs", told=lambda sent: b" 1/9 " in sent)
    own.model.embedding = None
    gate.set()
    assert done.code == 130
    assert "1 unchanged" in done.err
    assert "run the same command again to go on" in done.err
    assert "Traceback" not in done.err
    own.settled(store_of(own, "hangs").id)
    assert shell.run("ingest", "docs", "--store", "hangs", "--json").json["failed"] == 0
    assert own.counts(store_of(own, "hangs").id)["completed"] == 9
    assert len(all_files(own)) == 9


def test_a_server_that_goes_away_ends_the_run_with_one_line(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    shell = Shell(tmp_path / "here")
    written(shell.folder / "docs", {f"{n}.md": f"The heron {n} waits." for n in range(9)})
    with libraries(data, "knowledge: {embedding_retries: 0, wait_seconds: 0}") as library:
        gate = Gate()
        shell.variables["TREADLE_URL"] = library.url
        shell.run("ingest", "docs/0.md", "--store", "lost")
        library.model.embedding = lambda request: gate
        running = shell.begin("ingest", "docs", "--store", "lost")
        store, until = store_of(library, "lost").id, time.monotonic() + PATIENCE
        while not library.counts(store)["in_progress"]:
            assert time.monotonic() < until
    out, err = running.communicate(timeout=PATIENCE)
    gate.set()
    assert running.returncode == 1
    errors = [line for line in err.decode().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    assert library.url.removesuffix("/v1") in errors[0]
    assert b"not looked at" in out


def test_one_reason_for_all_ends_the_run(own: Library, tmp_path: Path) -> None:
    shell = at(own.url, tmp_path / "here")
    written(shell.folder / "docs", {f"{n}.md": f"The heron {n} waits." for n in range(30)})
    shell.run("ingest", "docs/0.md", "--store", "away")
    own.model.embedding = lambda request: Refuse(500)
    done = shell.run("ingest", "docs", "--store", "away", "--json", code=1)
    assert 10 <= done.json["failed"] <= 13, "more than were on their way"
    assert done.json["stopped"]
    assert "one file after another fails for the same reason" in done.err
    assert own.counts(store_of(own, "away").id)["total"] <= 4


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8321", "--url: expected the address of a server"),
        ("ftp://host", "--url: expected the address of a server"),
        ("http://", "--url: expected the address of a server"),
        ("http://[::1", "--url: expected the address of a server"),
        ("http://host:99999", "--url: expected the address of a server"),
        ("http://user:secret@host", "--url: expected the address of a server"),
        ("http://127.0.0.1:1", "error: http://127.0.0.1:1 cannot be reached: "),
    ],
)
def test_addresses_that_lead_nowhere(tmp_path: Path, url: str, said: str) -> None:
    written(tmp_path, {"a.md": "x"})
    done = Shell(tmp_path).run("ingest", "a.md", "--store", "s", "--url", url, code=1)
    assert said in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""
