"""Plain text and Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.retrieval.extract.blocks import Block, Paragraph
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.markdown import markdown

MARKDOWN = frozenset({"md", "markdown", "mdx", "mkd", "rmd", "qmd"})


def read(document: Document) -> Iterator[Block]:
    text = document.text_bytes().decode(errors="replace")
    if document.extension in MARKDOWN:
        yield from markdown(text)
    else:
        yield from plain(text)


def plain(text: str) -> Iterator[Block]:
    yield Paragraph(text)
