"""What stands in messages besides text: what kind of picture bytes are, data URLs, and notes where there is nothing."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import unquote_to_bytes

from treadle.errors import InvalidRequest

Place = tuple[str, int]
"""An item's id, and the number of one of its parts."""

NOWHERE_ELSE: Mapping[Place, str] = MappingProxyType({})
"""No part stands elsewhere in the request than its item."""

NO_IMAGE = "[An image stands here; this model does not read images.]"
NO_FILE = "[A file stands here; this model does not read files.]"
GONE = "[What stood here by the id of a file cannot be shown any more.]"

_PICTURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_NO_PICTURES = frozenset({"image/svg+xml"})
"""Programs rather than pictures; no model takes them."""


def picture_type(data: bytes, declared: str) -> str | None:
    """The media type of a picture: by its first bytes, or as declared for the rarer kinds. None for what is none."""
    for magic, kind in _PICTURES:
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    rare = declared.startswith("image/") and declared not in _NO_PICTURES and declared not in _COMMON
    return declared if rare and data else None


_COMMON = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Known by their first bytes: what only claims to be one of them is not."""


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def from_data_url(url: str) -> tuple[str, bytes]:
    """Media type and bytes of a data URL, or of bare base64, as some clients send. InvalidRequest if it is broken."""
    head, comma, payload = url.partition(",") if url[:5].lower() == "data:" else ("data:;base64", ",", url)
    kind, *options = head[5:].split(";")
    try:
        if not comma:
            raise ValueError
        encoded = any(option.strip().lower() == "base64" for option in options)
        data = b64decode(payload, validate=True) if encoded else unquote_to_bytes(payload)
    except (ValueError, binascii.Error):
        raise InvalidRequest("The inline data is no valid base64.", code="invalid_base64") from None
    return kind.strip().lower(), data
