"""What `include` shows: without its flag, bulky or sealed data is left out of items that are read back (contract §6.4)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec import Raw

from treadle.ports import StoredItem
from treadle.wire.base import NULL, encode

_fields = msgspec.json.Decoder(dict[str, Raw])
_parts = msgspec.json.Decoder(list[dict[str, Raw]])
_EMPTY = Raw(b"[]")


def shown(item: StoredItem, include: Collection[str]) -> Raw:
    """The item's JSON under `include`."""
    if (
        item.kind == "reasoning"
        and "reasoning.encrypted_content" not in include
        and b'"encrypted_content"' in item.data
    ):
        fields = _fields.decode(item.data)
        fields.pop("encrypted_content", None)
        return Raw(encode(fields))
    if item.kind == "message":
        return _message(item.data, include)
    return Raw(item.data)


def _message(data: bytes, include: Collection[str]) -> Raw:
    hide_logprobs = "message.output_text.logprobs" not in include and b'"logprobs":[{' in data
    hide_images = "message.input_image.image_url" not in include and b'"image_url":"data:' in data
    if not hide_logprobs and not hide_images:
        return Raw(data)
    fields = _fields.decode(data)
    parts = _parts.decode(fields["content"])
    for part in parts:
        if hide_logprobs and "logprobs" in part:
            part["logprobs"] = _EMPTY
        if hide_images and bytes(part.get("image_url", NULL)).startswith(b'"data:'):
            part["image_url"] = NULL
    fields["content"] = Raw(encode(parts))
    return Raw(encode(fields))
