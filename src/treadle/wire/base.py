"""Encoding, decoding, and the translation of a decode error into the wire error with its `param` path."""

from __future__ import annotations

import re
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw

from treadle.errors import InvalidRequest
from treadle.wire.faults import unreadable

T = TypeVar("T")

MAX_STRING = 10_485_760
Text = Annotated[str, Meta(max_length=MAX_STRING)]
"""A text of at most 10,485,760 characters, OpenAI's limit for one string."""

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]

Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$(?!\n)")]
"""A function's or schema's name; `$` alone would let a line end through."""

NULL = Raw(b"null")
"""An absent value of a field that is kept as bytes."""

_encoder = msgspec.json.Encoder()
encode = _encoder.encode
encode_into = _encoder.encode_into

_PATH = re.compile(r" - at (?:`key` in )?`(?:key in )?\$(.*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")
_CODES = (
    (re.compile(r"Expected `(int|float)` >=? "), "integer_below_min_value"),
    (re.compile(r"Expected `(int|float)` <=? "), "integer_above_max_value"),
    (re.compile(r"Expected `(str|array|object)` of length <= "), "{}_above_max_length"),
    (re.compile(r"Expected `(str|array|object)` of length >= "), "{}_below_min_length"),
    (re.compile(r"Expected `"), "invalid_type"),
)
_KINDS = {"str": "string", "int": "integer", "float": "decimal"}


def decode(decoder: msgspec.json.Decoder[T], data: bytes | Raw, at: str = "") -> T:
    """Decodes `data`. InvalidRequest, with `param` the path of the fault below `at`, when it does not fit."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise refuse(str(error), at) from None
    except RecursionError:
        raise InvalidRequest("The JSON is nested too deeply.", param=at or None, code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unreadable(bytes(data), _plain(str(error))) from None


def refuse(fault: str, at: str = "") -> InvalidRequest:
    """The wire error for a msgspec validation message."""
    place = _PATH.search(fault)
    # msgspec does not say which key of a map it means, and writes `[...]` for it; then the map is named.
    path = at + (place.group(1).partition("[...]")[0] if place else "")
    text = fault[: place.start()] if place else fault
    if missing := _MISSING.search(text):
        path = f"{path}.{missing.group(1)}".lstrip(".")
        return InvalidRequest(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")
    path = path.lstrip(".")
    if text.startswith("Expected `str` matching"):
        text = "expected 1 to 64 letters, digits, '_' and '-'"
        return InvalidRequest(f"Invalid value for '{path}': {text}.", param=path or None)
    where = f" for '{path}'" if path else ""
    return InvalidRequest(f"Invalid value{where}: {_plain(text)}.", param=path or None, code=_code(text))


def _code(text: str) -> str:
    for pattern, code in _CODES:
        if found := pattern.match(text):
            kind = found.group(1) if pattern.groups else ""
            return code.format(_KINDS.get(kind, kind)).replace(
                "integer_", "decimal_" if kind == "float" else "integer_"
            )
    return "invalid_value"


def _plain(text: str) -> str:
    """msgspec's wording without its Python type names, and without its guess at what a short text means."""
    text = text.replace("`", "").replace(" | ", " or ").removeprefix("JSON is malformed: ")
    for name, plain in (("str", "string"), ("int", "integer"), ("float", "number"), ("bool", "boolean")):
        text = re.sub(rf"\b{name}\b", plain, text)
    if text == "Input data was truncated":
        return "it ends too early"
    return text[:1].lower() + text[1:]
