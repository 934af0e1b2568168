"""What `include` shows: without its flag, bulky or sealed data is left out of items read back (contract §6.4)."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec import Raw

from treadle.ports import StoredItem
from treadle.wire.base import NULL, encode

_fields = msgspec.json.Decoder(dict[str, Raw])
_parts = msgspec.json.Decoder(list[dict[str, Raw]])
_EMPTY = Raw(b"[]")

_HOSTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "code_interpreter_call": ("code_interpreter_call.outputs", ("outputs",)),
    "computer_call_output": ("computer_call_output.output.image_url", ("output", "image_url")),
    "file_search_call": ("file_search_call.results", ("results",)),
    "web_search_call": ("web_search_call.action.sources", ("action", "sources")),
}
"""Items of hosted tools: the flag, and the path of what it shows."""


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
    if item.kind == "web_search_call" and "web_search_call.results" not in include:
        item = StoredItem(item.id, item.kind, bytes(_less(Raw(item.data), "results")))
    if item.kind == "file_search_call":
        item = StoredItem(item.id, item.kind, bytes(_less(Raw(item.data), "told")))
    if (hosted := _HOSTED.get(item.kind)) is not None and hosted[0] not in include:
        return _without(Raw(item.data), hosted[1])
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


def _without(raw: Raw, path: tuple[str, ...]) -> Raw:
    """The object without what stands at `path`. A key at the top becomes null: strict types want it there."""
    try:
        fields = _fields.decode(raw)
    except msgspec.MsgspecError:
        return raw  # a client's item, of another shape
    match path:
        case (name,):
            fields[name] = NULL
        case (outer, inner) if outer in fields:
            fields[outer] = _popped(fields[outer], inner)
        case _:
            return raw
    return Raw(encode(fields))


def _less(raw: Raw, name: str) -> Raw:
    """The object without the key."""
    return _popped(raw, name) if b'"' + name.encode() + b'"' in bytes(raw) else raw


def _popped(raw: Raw, name: str) -> Raw:
    try:
        fields = _fields.decode(raw)
    except msgspec.MsgspecError:
        return raw
    fields.pop(name, None)
    return Raw(encode(fields))
