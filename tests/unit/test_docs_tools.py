"""The examples of docs/tools.md run as they are written, against a server started and configured as the page says.

Only addresses are others: the ports of the server and of the MCP server, and where the search service is.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from treadle.ports import SearchResult
from treadle.settings import load
from treadle.testing.server import RunningServer
from treadle.testing.upstream import Call, Received, Reply, ScriptedUpstream
from treadle.testing.web import FakeWeb

pytest.importorskip("openai", reason="the openai client comes with the test extra")

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"
SERVER, DICE, SEARXNG = "http://127.0.0.1:8321", "8765", "http://searxng.lan:8080"


class Block(NamedTuple):
    section: str
    language: str
    text: str


def blocks() -> list[Block]:
    found: list[Block] = []
    section = ""
    for part in re.split(r"^(#{2,3} .*)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE):
        if part.startswith("##"):
            section = part.lstrip("# ")
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", part, flags=re.DOTALL | re.MULTILINE):
            found.append(Block(section, language, text))
    return found


BLOCKS = blocks()
EXAMPLES = {block.section: block.text for block in BLOCKS if block.language == "python"}

PRINTED = {
    "MCP servers": r'roll {"sides": 20} (1?[1-9]|[12]0)\nIt gave \1\.\n',
    "Connectors": r"It gave [1-6]\.\n",
    "Approvals": r"May it run roll {}\nIt gave [1-6]\.\n",
    "Web search": r"It rains\.\nOslo this week https://www\.nrk\.no/oslo\n",
    "File search": r"Once a month\.\nfilter\.txt 12\n",
    "Tools of your own": r"It is noon\.\n",
}
"""What each example prints, by its section."""


def answer(request: Received) -> Reply:
    """A model that calls the first tool it is offered, and then says what that gave."""
    told = request.body["messages"][-1]
    if told["role"] != "tool":
        name = request.body["tools"][0]["function"]["name"]
        given = {
            "web_search": {"query": "Oslo"},
            "file_search": {"queries": ["cleaning"]},
            "roll": {"sides": 20} if "20" in told["content"] else {},
        }
        return Reply(calls=[Call(name, given.get(name, {}))])
    number = re.search(r"^\d+$", told["content"], re.MULTILINE)
    if "nrk.no" in told["content"]:
        return Reply("It rains【1】.")
    if "once a month" in told["content"]:
        return Reply("Once a month【1】.")
    return Reply(f"It gave {number[0]}." if number else told["content"])


@dataclass(frozen=True)
class Place:
    """Where the examples run: the addresses of this machine in the place of those on the page."""

    addresses: dict[str, str]

    def run(self, example: str) -> None:
        exec(compile(self.here(example), str(PAGE), "exec"), {"__name__": "__main__"})

    def here(self, text: str) -> str:
        for there, here in self.addresses.items():
            text = text.replace(there, here)
        return text


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def shell_lines() -> str:
    return "\n".join(block.text for block in BLOCKS if block.language == "sh")


def variables() -> dict[str, str]:
    """What the page's shell lines set."""
    return dict(re.findall(r"\b([A-Z][A-Z_]+)=(\S+)", shell_lines()))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("tools")
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        model = stack.enter_context(ScriptedUpstream(default=answer, models=["llama3.2"]))
        web = stack.enter_context(FakeWeb())
        web.results = [SearchResult("https://www.nrk.no/oslo", "Oslo this week", "Rain.")]
        place = Place({DICE: str(free_port()), SEARXNG: web.origin})
        yaml = [block.text for block in BLOCKS if block.language == "yaml"]
        (folder / "treadle.yaml").write_text(place.here("\n".join(["data_dir: data", *yaml])), encoding="utf-8")
        (folder / "dice.py").write_text(place.here(EXAMPLES["Trying the examples"]), encoding="utf-8")
        patch.chdir(folder)
        # `python` is the one of the environment that Treadle is installed in, as the page says.
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("OLLAMA_URL", model.url)
        stack.enter_context(started(folder))
        settings = load(None, environ={**variables(), "OLLAMA_URL": model.url}).require()
        place.addresses[SERVER] = stack.enter_context(RunningServer(settings)).root
        for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY"):
            patch.setenv(name, place.here(variables()[name]))
        yield place


@contextmanager
def started(folder: Path) -> Iterator[None]:
    """The page's MCP server, with the page's command."""
    (command,) = re.findall(r"^(python .*) &$", shell_lines(), flags=re.MULTILINE)
    with subprocess.Popen(
        command.split(), cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert any("running on" in line for line in process.stderr), "dice.py did not start"
            yield
        finally:
            process.terminate()


def test_every_section_with_an_example_is_known() -> None:
    assert EXAMPLES.keys() == {"Trying the examples", *PRINTED}
    assert len([block for block in BLOCKS if block.language == "python"]) == len(EXAMPLES)


@pytest.mark.parametrize("section", PRINTED)
def test_an_example_runs(place: Place, section: str, capsys: pytest.CaptureFixture[str]) -> None:
    place.run(EXAMPLES[section])
    assert re.fullmatch(PRINTED[section], capsys.readouterr().out)
