"""docs/cli.md documents every command and every flag, and no others."""

import argparse
import re
from pathlib import Path

from treadle.cli.main import build_parser

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """Command -> the text of its section."""
    parts = re.split(r"^## `treadle ([a-z]+)`.*$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def commands() -> dict[str, argparse.ArgumentParser]:
    holder = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(holder.choices)


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert sections().keys() == commands().keys()


def test_every_flag_is_documented_under_its_command_and_no_other_is() -> None:
    for name, text in sections().items():
        flags = {
            option
            for action in commands()[name]._actions
            for option in action.option_strings
            if action.help != argparse.SUPPRESS
        } - {"-h", "--help"}
        assert set(re.findall(r"^\| `(--[a-z-]+)", text, flags=re.MULTILINE)) == flags, name


def test_the_version_flag_is_documented() -> None:
    assert "treadle --version" in PAGE
