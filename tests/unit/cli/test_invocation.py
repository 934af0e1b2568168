"""The commands in advice are those that the user can type."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from treadle.cli import invocation


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an environment in it that is not on the PATH."""
    program = tmp_path / ".venv" / "bin" / "treadle"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_program_off_the_path_is_named_by_its_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/treadle", "check"])
    assert invocation.program() == ".venv/bin/treadle"
    monkeypatch.setattr(sys, "argv", [str(folder / ".venv/bin/treadle"), "check"])
    assert invocation.program() == ".venv/bin/treadle"
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert invocation.program() == f"{folder}/.venv/bin/treadle"


def test_a_program_on_the_path_is_named_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder / ".venv" / "bin"))
    monkeypatch.setattr(sys, "argv", [str(folder / ".venv/bin/treadle"), "check"])
    assert invocation.program() == "treadle"


def test_a_module_is_named_with_its_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/lib/treadle/__main__.py"])
    monkeypatch.setattr(sys, "executable", str(folder / ".venv" / "bin" / "python"))
    assert invocation.program() == ".venv/bin/python -m treadle"


def test_make_is_named_where_make_started_it() -> None:
    called = invocation.command(Namespace(command="go", from_make=True))
    assert called == "make serve"
    assert invocation.with_port(called, 1) == 'make serve SERVE_ARGS="--port 1"'
    assert invocation.with_port(".venv/bin/treadle go", 1) == ".venv/bin/treadle go --port 1"
