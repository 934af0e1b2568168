"""Tells what a document is by its bytes. Names only refine what is text anyway."""

from __future__ import annotations

import msgspec

from treadle.errors import UnsupportedFile
from treadle.retrieval.extract.document import Document


class Kind(msgspec.Struct, frozen=True):
    """A type of document: the module that reads it, and what is said of one without text."""

    module: str
    empty: str = "The document has no text."


TEXT = Kind("text")


def detect(document: Document) -> Kind:
    """UnsupportedFile for what no reader here can read."""
    if b"\0" in document.head:
        raise UnsupportedFile("Files of this type cannot be read.")
    return TEXT
