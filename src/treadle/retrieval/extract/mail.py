"""E-mail messages: the headers people see, the body, and the names of what is attached."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from email import policy
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser

from treadle.retrieval.extract.blocks import Block, Heading, Paragraph
from treadle.retrieval.extract.document import Document
from treadle.retrieval.extract.encoding import decoded, plain_lines
from treadle.retrieval.extract.html import html_blocks
from treadle.retrieval.extract.text import plain

_LONG_HEADER = 5_000
"""Characters."""
_HEADERS = ("From", "To", "Cc", "Date")


def read(document: Document) -> Iterator[Block]:
    with document.path.open("rb") as file:
        message = BytesParser(_class=EmailMessage, policy=policy.default).parse(file)
    subject = _header(message, "Subject")
    if subject:
        yield Heading(subject, 1)
    headers = "\n".join(f"{name}: {value}" for name in _HEADERS if (value := _header(message, name)))
    if headers:
        yield Paragraph(headers)
    yield from _body(message)
    attached = ", ".join(filter(None, map(_name, message.iter_attachments())))
    if attached:
        yield Paragraph(f"Attachments: {attached}")


def _header(message: EmailMessage, name: str) -> str:
    raw = next((str(value) for key, value in message.raw_items() if key.lower() == name.lower()), "")
    # The parser of structured headers fails in several ways on broken ones, and takes its time on long ones; their raw
    # text is better than nothing.
    if len(raw) <= _LONG_HEADER:
        with contextlib.suppress(Exception):
            return " ".join(str(message[name] or "").split())
    return " ".join(raw.split())[:_LONG_HEADER]


def _body(message: EmailMessage) -> Iterator[Block]:
    for kind in ("plain", "html"):
        part = message.get_body((kind,))
        text = _text(part) if part is not None else ""
        if text.strip():
            yield from plain(text) if kind == "plain" else html_blocks(text, titled=False)
            return


def _text(part: MIMEPart) -> str:
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes) or not payload:
        return ""
    with contextlib.suppress(LookupError, UnicodeDecodeError):
        return plain_lines(payload.decode(part.get_content_charset("utf-8")))
    return decoded(payload)


def _name(part: EmailMessage) -> str:
    name = ""
    with contextlib.suppress(Exception):
        name = part.get_filename() or ""
    if not name and part.get_content_type() == "message/rfc822":
        inner = part.get_payload()
        if isinstance(inner, list) and inner and isinstance(inner[0], EmailMessage):
            name = f"message “{_header(inner[0], 'Subject')}”"
    return " ".join(name.split())[:200]
