"""How readers say that a document cannot be read."""

from __future__ import annotations

import importlib
import importlib.util

from treadle.errors import UnreadableFile, UnsupportedFile

EXTRA = "knowledge"


def require(module: str, kind: str) -> None:
    """UnsupportedFile, naming the extra, unless `module` can be imported."""
    if importlib.util.find_spec(module) is None:
        raise UnsupportedFile(
            f"Reading {kind} needs the Python package {module}, which is not installed on this server "
            f"(extra `{EXTRA}`: pip install 'treadle[{EXTRA}]')."
        )


def damaged(kind: str, reason: str = "") -> UnreadableFile:
    return UnreadableFile(f"The {kind} is damaged{f': {reason}' if reason else ''}.")


def encrypted(kind: str) -> UnreadableFile:
    return UnreadableFile(f"The {kind} is encrypted with a password. Upload it without one.")
