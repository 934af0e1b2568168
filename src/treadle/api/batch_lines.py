"""The lines of a batch's input file: reading them one by one, and what is wrong with one (contract §14)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw

from treadle.wire.batches import BatchError, BatchRequest

MAX_CUSTOM_ID = 512
_line = msgspec.json.Decoder(BatchRequest)
_fields = msgspec.json.Decoder(dict[str, Raw])
_required = {"/v1/chat/completions": "messages", "/v1/completions": "prompt", "/v1/embeddings": "input"}
_names = {
    "/v1/responses": "Responses",
    "/v1/chat/completions": "Chat Completions",
    "/v1/completions": "Completions",
    "/v1/embeddings": "Embeddings",
}


class Line(NamedTuple):
    """A request of the file that can be run. `number` counts from 1, empty lines included."""

    number: int
    custom_id: str
    model: str
    body: bytes


class BadLine(Exception):
    """A line that cannot be run, with the wire form of its fault."""

    def __init__(self, number: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.error = BatchError(code=code, message=message, line=number, param=param)


async def numbered(content: AsyncIterator[bytes], limit: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """The lines that are not empty, with their numbers. BadLine for one longer than `limit` bytes."""
    number, rest, size = 1, list[bytes](), 0
    async for piece in content:
        first, *more = piece.split(b"\n")
        rest.append(first)
        size += len(first)
        _fits(number, size, limit)
        for begun in more:
            whole = b"".join(rest)
            if whole.strip():
                yield number, whole
            number, rest, size = number + 1, [begun], len(begun)
            _fits(number, size, limit)
    if last := b"".join(rest).strip():
        yield number, last


def _fits(number: int, size: int, limit: int) -> None:
    if size > limit:
        raise BadLine(number, "invalid_request", f"The line is longer than {limit} bytes (server.max_body_bytes).")


def read_line(number: int, data: bytes, endpoint: str) -> Line:
    """The request of a line. BadLine says what keeps it from being run."""
    if number == 1:
        data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        data.decode("utf-8")
        found = _line.decode(data)
    except msgspec.ValidationError:
        raise BadLine(number, "invalid_request", "Each line must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadLine(number, "invalid_json_line", "This line is not parseable as valid JSON.") from None
    for name in ("custom_id", "method", "url", "body"):
        if getattr(found, name) is (UNSET if name == "body" else None):
            raise BadLine(number, "missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    custom_id = found.custom_id
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        message = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID} characters."
        raise BadLine(number, "invalid_request", message, "custom_id")
    if found.method != "POST":
        raise BadLine(number, "invalid_request", "'method' must be 'POST'.", "method")
    if found.url != endpoint:
        message = f"The URL of this line does not match the endpoint of its batch, '{endpoint}'."
        raise BadLine(number, "invalid_url", message, "url")
    assert isinstance(found.body, Raw)
    return Line(number, custom_id, _model(number, found.body, endpoint), bytes(found.body))


def _model(number: int, body: Raw, endpoint: str) -> str:
    """The model that the body asks for; an empty string for the server's default."""
    try:
        fields = _fields.decode(body)
    except msgspec.DecodeError:
        raise BadLine(number, "invalid_request", "'body' must be a JSON object.", "body") from None
    if bytes(fields.get("stream", Raw(b"false"))) not in (b"false", b"null"):
        message = f"{_names[endpoint]}: Streaming is not supported in the Batch API."
        raise BadLine(number, "streaming_unsupported", message, "body.stream")
    if bytes(fields.get("background", Raw(b"false"))) not in (b"false", b"null"):
        message = "A batch runs in the background as a whole; its lines must not ask for it."
        raise BadLine(number, "invalid_request", message, "body.background")
    if (needed := _required.get(endpoint)) is not None and needed not in fields:
        raise BadLine(number, "invalid_request", f"Missing required parameter: '{needed}'.", f"body.{needed}")
    model = fields.get("model")
    if model is None or bytes(model) == b"null":
        return ""
    try:
        return msgspec.json.decode(model, type=str)
    except msgspec.DecodeError:
        raise BadLine(number, "invalid_request", "'model' must be a string.", "body.model") from None
