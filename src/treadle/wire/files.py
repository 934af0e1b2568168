"""Files and the form that uploads them (contract §12)."""

from __future__ import annotations

import re
import unicodedata
from mimetypes import guess_type
from pathlib import PurePosixPath
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from treadle.wire.lists import Page

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
"""What clients may say that a file is for. It is kept and shown; nothing depends on it."""

PURPOSES = frozenset({*get_args(Purpose), "assistants_output", "batch_output", "fine-tune-results"})
"""Those, and what files are for that servers write."""

MAX_NAME = 255
"""Bytes of a filename, the limit of nearly every file system it may be saved to."""

UNNAMED = "file"


class FileExpiry(msgspec.Struct, kw_only=True):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=3600, le=2_592_000)]


class CreateFile(msgspec.Struct, kw_only=True):
    """What the form says beside the file itself."""

    purpose: Purpose
    expires_after: FileExpiry | None = None


class File(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | UnsetType = UNSET
    filename: str
    purpose: str
    status: Literal["uploaded", "processed", "error"] = "processed"


class FileDeleted(msgspec.Struct):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


FileList = Page[File]

# The system's own table differs from machine to machine, and Python's lacks these.
_MORE_TYPES = {
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".epub": "application/epub+zip",
    ".eml": "message/rfc822",
    ".gz": "application/gzip",
    ".jsonl": "application/jsonl",
    ".log": "text/plain",
    ".md": "text/markdown",
    ".parquet": "application/vnd.apache.parquet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".toml": "application/toml",
    ".webp": "image/webp",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
# Left-to-right marks and the like make a name look like another one.
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_HIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})


def clean_filename(given: str) -> str:
    """The name without folders, without what cannot be seen, and safe to save under (bug case 66)."""
    name = given.replace("\\", "/").rsplit("/", 1)[-1]
    name = "".join(char for char in _BIDI.sub("", name) if unicodedata.category(char) not in _HIDDEN)
    # A leading dot hides a file or names a folder; Windows drops dots and spaces at the end.
    name = name.strip().lstrip(".").strip().rstrip(". ")
    return _shortened(name) or UNNAMED


def media_type_of(filename: str) -> str:
    """By the name's ending alone."""
    suffix = PurePosixPath(filename).suffix.lower()
    found, encoding = (_MORE_TYPES[suffix], None) if suffix in _MORE_TYPES else guess_type(f"a{suffix}", strict=True)
    return found if found is not None and encoding is None else "application/octet-stream"


def _shortened(name: str) -> str:
    """At most MAX_NAME bytes, with the ending kept."""
    if len(name.encode()) <= MAX_NAME:
        return name
    suffix = PurePosixPath(name).suffix
    if not 0 < len(suffix.encode()) <= 32:
        suffix = ""
    stem = name[: len(name) - len(suffix)].encode()[: MAX_NAME - len(suffix.encode())].decode(errors="ignore")
    return stem.rstrip() + suffix
