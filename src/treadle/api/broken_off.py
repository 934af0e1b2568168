"""What a stream needs to end well whose process went away in the middle: what is open in its log, closed as incomplete.

Works on the JSON of the events as they stand in the log, because that is all there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Raw

from treadle.wire.base import encode
from treadle.wire.frames import escaped

Json = dict[str, object]

_TEXTS = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
}
_ARGUMENTS = {
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.mcp_call_arguments": "arguments",
}
_LISTING = "response.mcp_list_tools"
_PHASED = (_LISTING, "response.mcp_call", "response.web_search_call", "response.file_search_call")
_STREAM_OF = {
    "output_text": "response.output_text",
    "refusal": "response.refusal",
    "reasoning_text": "response.reasoning_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
    "mcp_call": "response.mcp_call_arguments",
}


class _Event(msgspec.Struct):
    """What matters of an event."""

    type: str
    output_index: int = -1
    content_index: int = -1
    response_id: str = ""
    delta: str = ""
    item: Raw = Raw(b"{}")
    part: Raw = Raw(b"{}")
    annotation: Raw = Raw(b"{}")


class _Item(msgspec.Struct):
    type: str
    id: str = ""
    name: str = ""


class _Part(msgspec.Struct):
    type: str


_event = msgspec.json.Decoder(_Event)
_item = msgspec.json.Decoder(_Item)
_part = msgspec.json.Decoder(_Part)
_fields = msgspec.json.Decoder(Json)


class BrokenOff:
    """Reads a log from its beginning; then has the items that were closed, and closes the others."""

    def __init__(self) -> None:
        self.items: dict[int, bytes] = {}
        """Items that are closed, as JSON, by output index."""
        self._open: dict[int, bytes] = {}
        self._texts: dict[tuple[int, int], list[str]] = {}
        """Deltas by item and part; what belongs to no part has the number -1."""
        self._ended: set[tuple[int, int]] = set()
        self._annotations: dict[tuple[int, int], list[Raw]] = {}
        self._parts: dict[int, dict[int, bytes]] = {}
        self._parts_done: dict[int, dict[int, bytes]] = {}
        self._phases: dict[int, set[str]] = {}
        """What else was told of an item, such as that its call has completed."""
        self._response = ""

    def read(self, frames: bytes) -> None:
        for frame in frames.split(b"\n\n"):
            _, _, data = frame.partition(b"\ndata: ")
            if data:
                self._take(_event.decode(data))

    def close(self, number: int) -> tuple[bytes, int]:
        """The frames that close what is open, from a sequence number on; and the next number."""
        out = bytearray()
        for index in sorted(self._open):
            for event in self._closed(index):
                out += b"event: " + str(event["type"]).encode() + b"\ndata: "
                out += escaped(encode({"type": event.pop("type"), "sequence_number": number, **event})) + b"\n\n"
                number += 1
        self._open.clear()
        return bytes(out), number

    def _take(self, event: _Event) -> None:
        index, place = event.output_index, (event.output_index, event.content_index)
        stem, _, verb = event.type.rpartition(".")
        match event.type:
            case "response.output_item.added":
                self._open[index] = bytes(event.item)
                self._response = event.response_id
            case "response.output_item.done":
                self._open.pop(index, None)
                self.items[index] = bytes(event.item)
            case "response.content_part.added":
                self._parts.setdefault(index, {})[event.content_index] = bytes(event.part)
            case "response.content_part.done":
                self._parts.setdefault(index, {}).pop(event.content_index, None)
                self._parts_done.setdefault(index, {})[event.content_index] = bytes(event.part)
            case "response.output_text.annotation.added":
                self._annotations.setdefault(place, []).append(Raw(bytes(event.annotation)))
            case _ if stem in _PHASED:
                self._phases.setdefault(index, set()).add(verb)
            case _ if stem in _TEXTS or stem in _ARGUMENTS:
                if verb == "delta":
                    self._texts.setdefault(place, []).append(event.delta)
                else:
                    self._ended.add(place)
            case _:
                pass

    def _closed(self, index: int) -> Iterator[Json]:
        data = self._open[index]
        item, fields = _item.decode(data), _fields.decode(data)
        where: Json = {"item_id": item.id, "output_index": index}
        if item.type == "mcp_list_tools":
            yield from self._failed_listing(index, fields, where)
        stream = _STREAM_OF.get(item.type)
        if stream is not None:
            text = "".join(self._texts.get((index, -1), ()))
            fields[_ARGUMENTS[stream]] = text
            if (index, -1) not in self._ended:
                named: Json = {"name": item.name} if item.type == "function_call" else {}
                yield {"type": f"{stream}.done", **where, **named, _ARGUMENTS[stream]: text}
        for content_index, part in sorted(self._parts.get(index, {}).items()):
            yield from self._closed_part(index, content_index, part, where)
        if parts := self._parts_done.get(index):
            fields["content"] = [Raw(parts[number]) for number in sorted(parts)]
        if "status" in fields:
            told = self._phases.get(index, set()) & {"completed", "failed"}
            fields["status"] = told.pop() if told else "incomplete"
        self.items[index] = encode(fields)
        yield {
            "type": "response.output_item.done",
            "response_id": self._response,
            "output_index": index,
            "item": Raw(self.items[index]),
        }

    def _failed_listing(self, index: int, fields: Json, where: Json) -> Iterator[Json]:
        phases = self._phases.get(index, set())
        if not phases:
            yield {"type": f"{_LISTING}.in_progress", **where}
        if phases <= {"in_progress"}:
            fields["error"] = "Not finished: the response ended before."
            yield {"type": f"{_LISTING}.failed", **where}

    def _closed_part(self, index: int, content_index: int, part: bytes, where: Json) -> Iterator[Json]:
        place = (index, content_index)
        fields, stream = _fields.decode(part), _STREAM_OF[_part.decode(part).type]
        text = "".join(self._texts.get(place, ()))
        fields[_TEXTS[stream]] = text
        if annotations := self._annotations.get(place):
            fields["annotations"] = annotations
        at: Json = {**where, "content_index": content_index}
        if place not in self._ended:
            probabilities: Json = {"logprobs": []} if stream == "response.output_text" else {}
            yield {"type": f"{stream}.done", **at, _TEXTS[stream]: text, **probabilities}
        self._parts_done.setdefault(index, {})[content_index] = encode(fields)
        yield {"type": "response.content_part.done", **at, "response_id": self._response, "part": Raw(encode(fields))}


def kinds(items: Iterable[bytes]) -> list[tuple[str, str, bytes]]:
    """Id, kind and JSON of items."""
    found = [(_item.decode(data), data) for data in items]
    return [(item.id, item.type, data) for item, data in found]
