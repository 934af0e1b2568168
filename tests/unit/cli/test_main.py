"""The command line as a whole: what is printed, and the exit codes."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

from treadle import __version__
from treadle.cli.main import build_parser, main

ROOT = Path(__file__).parents[3]


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands, by name."""
    holder = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(holder.choices)


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "treadle", *arguments], capture_output=True, text=True, timeout=20, cwd=cwd, check=False
    )


def test_python_m_treadle_is_the_command(bare: Path) -> None:
    done = run("--version", cwd=bare)
    assert (done.returncode, done.stdout) == (0, f"treadle {__version__}\n")


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "`treadle go` finds a model" in capsys.readouterr().out
    done = run(cwd=ROOT)
    assert " -m treadle go` finds a model" in done.stdout


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["sevre"])
    assert exit_.value.code == 2
    assert "sevre" in capsys.readouterr().err


def test_the_command_line_is_imported_without_the_server() -> None:
    heavy = ("aiohttp", "uvicorn", "starlette", "msgspec", "yaml", "asyncio", "platformdirs")
    code = f"import sys, treadle.cli.main; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "[]\n"


def test_config_shows_what_is_in_force(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bare / "treadle.yaml").write_text("server: {port: 9999}\n")
    assert main(["config"]) == 0
    plain = capsys.readouterr().out
    assert "# file: treadle.yaml" in plain
    assert "server.port = 9999\n" in plain
    assert "from:" not in plain
    assert main(["config", "--explain"]) == 0
    assert "server.port = 9999\n    from: file treadle.yaml:1\n    Port to listen on" in capsys.readouterr().out


def test_config_with_faults_shows_them_and_fails(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bare / "treadle.yaml").write_text("sever: {port: 9999}\n")
    assert main(["config"]) == 1
    assert "error: sever: is not a known setting; did you mean `server`?" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_traceback(bare: Path) -> None:
    command = f"{sys.executable} -m treadle config --explain | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20, cwd=bare, check=False)
    assert done.stdout == "# file: none\n"
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["serve", "go"])
def test_a_fault_in_the_configuration_keeps_the_server_from_starting(
    bare: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    (bare / "treadle.yaml").write_text("server: {port: high}\n")
    assert main([command]) == 1
    assert "error: server.port: must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["serve", "go"])
def test_listening_beyond_this_machine_is_refused_by_name_of_the_flag(
    bare: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([command, "--host", "0.0.0.0"]) == 1
    captured = capsys.readouterr().err
    assert "--insecure" in captured
    assert "(flag --host)" in captured


def test_every_flag_has_a_help_text() -> None:
    for name, command in commands(build_parser()).items():
        assert command.description, name
        assert [action.dest for action in command._actions if not action.help] == []


def test_the_environment_of_the_tests_does_not_leak_into_them(bare: Path) -> None:
    assert [name for name in os.environ if name.endswith("_API_KEY")] == []
