"""Forms with files (RFC 7578), read part by part while they arrive; no more than one network read is in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from typing import Literal
from urllib.parse import unquote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from treadle.errors import InvalidRequest, TooLarge, UnsupportedMedia

MULTIPART = "multipart/form-data"

MAX_PARTS = 64
MAX_FIELD = 65_536
"""Bytes of a field that is not a file."""

_END: Literal["end"] = "end"


class Part:
    """A part of the form: a field, or a file if it has a filename. Read its content before the next part is asked for;
    what is left of it is skipped then."""

    def __init__(self, reader: _Reader, name: str, filename: str | None) -> None:
        self.name = name
        self.filename = filename
        self._reader = reader

    async def content(self) -> AsyncGenerator[bytes, None]:
        """The bytes, as they come. InvalidRequest if the body breaks off."""
        while (piece := await self._reader.next()) != _END:
            assert isinstance(piece, bytes)
            yield piece

    async def text(self) -> str:
        """The value of a field."""
        value = bytearray()
        async for piece in self.content():
            value += piece
            if len(value) > MAX_FIELD:
                raise InvalidRequest(f"'{self.name}' is longer than {MAX_FIELD} bytes.", param=self.name)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(f"'{self.name}' is not UTF-8.", param=self.name) from None


async def parts_of(request: Request, limit: int) -> AsyncGenerator[Part, None]:
    """The parts of a form, in order. TooLarge if the body has more than `limit` bytes; UnsupportedMedia if it is no
    form; InvalidRequest if it is not well formed."""
    reader = _Reader(request, limit)
    count = 0
    while (found := await reader.next()) is not None:
        if not isinstance(found, Part):
            continue  # the rest of a part that nobody wanted
        if (count := count + 1) > MAX_PARTS:
            raise InvalidRequest(f"The form has more than {MAX_PARTS} parts.")
        yield found


class _Reader:
    """The parser fed from the request, and what it has found and nobody has taken yet. It bounds headers itself."""

    def __init__(self, request: Request, limit: int) -> None:
        self._body = _bounded(request, limit)
        self._found: deque[Part | bytes | Literal["end"]] = deque()
        self._parser = MultipartParser(
            _boundary(request),
            {
                "on_part_begin": self._begin,
                "on_header_field": self._header_name,
                "on_header_value": self._header_value,
                "on_header_end": self._header,
                "on_headers_finished": self._headers,
                "on_part_data": self._data,
                "on_part_end": lambda: self._found.append(_END),
                "on_end": self._whole,
            },
        )
        self._name, self._value = b"", b""
        self._disposition = ""
        self._complete = False

    async def next(self) -> Part | bytes | Literal["end"] | None:
        """What comes next; None at the end of the form."""
        while not self._found:
            piece = await anext(self._body, None)
            if piece is None:
                if self._complete:
                    return None
                raise InvalidRequest("The form is not complete: its last boundary is missing.", param="file")
            try:
                self._parser.write(piece)
            except FormParserError:
                raise InvalidRequest(
                    "The form could not be read: it is no valid multipart/form-data.", param="file"
                ) from None
        return self._found.popleft()

    def _begin(self) -> None:
        self._disposition = ""

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = self._value.decode("utf-8", "replace")
        elif self._name.lower() == b"content-transfer-encoding" and self._value.strip().lower() not in _PLAIN:
            raise InvalidRequest("Parts of a form must not be encoded (Content-Transfer-Encoding).")
        self._name, self._value = b"", b""

    def _headers(self) -> None:
        name, filename = _named(self._disposition)
        self._found.append(Part(self, name, filename))

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._found.append(data[start:end])

    def _whole(self) -> None:
        self._complete = True


_PLAIN = (b"7bit", b"8bit", b"binary")


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != MULTIPART.encode():
        raise UnsupportedMedia(f"Send the file as a form, with 'Content-Type: {MULTIPART}'.")
    if not (boundary := options.get(b"boundary", b"")) or len(boundary) > 70:
        raise InvalidRequest("The Content-Type has no boundary, or one that is too long.", param="file")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UnsupportedMedia("Files are taken as they are, without a Content-Encoding.")
    return boundary


async def _bounded(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if piece:
            yield piece


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The form is larger than {limit} bytes.", param="file", code="file_too_large")


def _named(disposition: str) -> tuple[str, str | None]:
    """The name of a part, and its filename if it is a file. Browsers and SDKs write UTF-8 there, and `"`, CR and LF
    with a percent sign; some old libraries write `filename*` (RFC 5987)."""
    _, options = parse_options_header(disposition.encode().decode("latin-1"))
    name = options.get(b"name", b"").decode("utf-8", "replace")
    if (filename := options.get(b"filename")) is not None:
        text = filename.decode("utf-8", "replace")
        return name, text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")
    for segment in disposition.split(";")[1:]:
        key, _, value = segment.partition("=")
        if key.strip().lower() == "filename*":
            return name, unquote(value.strip().strip('"').rpartition("'")[2])
    return name, None
