"""The sequence checker: whether a stream of Responses events is one that the protocol allows (contract §7).

Every stream that any test makes goes through `check_sequence`, so each test is also a protocol test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from treadle.testing.frames import SequenceError, parse_sse
from treadle.testing.shapes import LIFECYCLE, PHASES, TERMINAL, event_faults

__all__ = ["SequenceError", "check_sequence", "parse_sse"]

Event = dict[str, Any]

# Delta events -> the key of their `.done` event that holds the joined text.
STREAMED = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.mcp_call_arguments": "arguments",
}
# Item kinds that may hold what is streamed.
HOLDERS = {
    "response.output_text": "message",
    "response.refusal": "message",
    "response.function_call_arguments": "function_call",
    "response.custom_tool_call_input": "custom_tool_call",
    "response.reasoning_text": "reasoning",
    "response.reasoning_summary_text": "reasoning",
    "response.mcp_call_arguments": "mcp_call",
}
# Whole-item streams: kind -> (stream, key of the item). They start as "" and their `.done` comes before the item's.
ARGUMENTS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
    "mcp_call": ("response.mcp_call_arguments", "arguments"),
}
PART_TEXT = {"response.output_text": "output_text", "response.refusal": "refusal"}


def check_sequence(events: Sequence[Event], *, complete: bool = True, first: int = 0) -> None:
    """Raises SequenceError naming every violation in `events`, the decoded stream in order.

    `complete`: the stream was read to its end, so it must have ended properly; false accepts a prefix.
    `first`: the sequence number of its first event; above 0 for a resumed stream, whose start is not checked.
    """
    checker = _Checker(resumed=first > 0)
    for offset, event in enumerate(events):
        checker.feed(event, first + offset)
    if complete:
        checker.end()
    if checker.violations:
        raise SequenceError(checker.violations)


@dataclass
class _Text:
    """One run of deltas and its `.done`."""

    deltas: list[str] = field(default_factory=list)
    done: str | None = None


@dataclass
class _Item:
    id: str
    kind: str
    index: int
    texts: dict[tuple[str, int], _Text] = field(default_factory=dict)
    parts: dict[tuple[str, int], dict[str, Any] | None] = field(default_factory=dict)
    """Opened parts of content and summary; None while open."""
    annotations: dict[int, list[Any]] = field(default_factory=dict)
    phases: list[str] = field(default_factory=list)
    done: dict[str, Any] | None = None


class _Checker:
    """Follows a stream event by event and collects what is wrong with it."""

    def __init__(self, *, resumed: bool) -> None:
        self.violations: list[str] = []
        self._resumed = resumed
        self._at = ""
        self._seen: list[str] = []
        self._identity: dict[str, Any] = {}
        self._items: dict[int, _Item] = {}
        self._final: dict[str, Any] | None = None

    def feed(self, event: Event, expected: int) -> None:
        kind = str(event.get("type"))
        self._at = f"event {expected} {kind}"
        number = event.get("sequence_number")
        if number != expected or isinstance(number, bool):
            self._say(f"sequence_number is {number!r}, not {expected}")
        faults = list(event_faults(event))
        for fault in faults:
            self._say(fault)
        if not faults:
            self._place(kind)
            self._dispatch(kind, event)
        self._seen.append(kind)

    def end(self) -> None:
        """What only a finished stream can lack."""
        self._at = "end of stream"
        if not self._seen or self._seen[-1] not in TERMINAL:
            self._say(f"no terminal event; the last is {self._seen[-1] if self._seen else None!r}")
        if self._seen and self._seen[-1] == "response.failed" and self._seen[-2:-1] != ["error"]:
            self._say("response.failed without an error event right before it")
        if self._final is None:
            return
        for item in self._items.values():
            if item.done is None:
                self._say(f"item {item.index} ({item.id}) was never closed")
        output = self._final["output"]
        if not self._resumed:
            if len(output) != len(self._items):
                self._say(f"{len(self._items)} items were streamed, the final output has {len(output)}")
            self._reasoning_precedes(output)
        for item in self._items.values():
            final = output[item.index] if item.index < len(output) else None
            if item.done is not None and final != item.done:
                self._say(f"output[{item.index}] differs from the item that was streamed: {final!r} != {item.done!r}")

    def _say(self, fault: str) -> None:
        self.violations.append(f"{self._at}: {fault}")

    # Place in the stream.

    def _place(self, kind: str) -> None:
        seen = self._seen
        ended = next((one for one in seen if one in TERMINAL), None)
        if ended is not None:
            self._say(f"comes after the terminal event {ended}")
        if "error" in seen and kind != "response.failed":
            self._say("comes after error, which only response.failed may follow")
        if kind in LIFECYCLE and kind in seen:
            self._say("is repeated")
        if self._resumed:
            return
        if not seen and kind != "response.created":
            self._say("is first instead of response.created")
        if seen == ["response.created"] and kind not in ("response.in_progress", "response.queued"):
            self._say("is second instead of response.in_progress")
        if seen == ["response.created", "response.queued"] and kind not in ("response.in_progress", "response.failed"):
            self._say("follows response.queued instead of response.in_progress")
        if len(seen) > 2 and kind in LIFECYCLE - set(seen):
            self._say("comes too late")

    def _dispatch(self, kind: str, event: Event) -> None:
        stem, _, verb = kind.rpartition(".")
        if kind in LIFECYCLE | TERMINAL:
            self._lifecycle(kind, event["response"])
        elif kind == "response.output_item.added":
            self._open_item(event)
        elif kind == "response.output_item.done":
            self._close_item(event)
        elif kind != "error" and (item := self._item_of(event)) is not None:
            if stem in STREAMED:
                self._text(item, stem, verb, event)
            elif stem in ("response.content_part", "response.reasoning_summary_part"):
                self._part(item, stem, verb, event)
            elif kind == "response.output_text.annotation.added":
                self._annotation(item, event)
            else:
                self._phase(item, stem.removeprefix("response."), verb)

    def _lifecycle(self, kind: str, response: dict[str, Any]) -> None:
        for key in ("id", "created_at", "model"):
            if self._identity.setdefault(key, response[key]) != response[key]:
                self._say(f"response.{key} changed from {self._identity[key]!r} to {response[key]!r}")
        status = kind.removeprefix("response.")
        allowed = {"queued", "in_progress"} if status == "created" else {status}
        if response["status"] not in allowed:
            self._say(f"carries status {response['status']!r}")
        if kind in LIFECYCLE and response["output"]:
            self._say("carries output before any was made")
        if kind in TERMINAL:
            self._final = response

    # Items.

    def _open_item(self, event: Event) -> None:
        index, item = event["output_index"], event["item"]
        kind, key = item["type"], item["id"]
        expected = max(self._items) + 1 if self._items else (index if self._resumed else 0)
        if index != expected:
            self._say(f"output_index is {index}, not {expected}")
        if any(other.id == key for other in self._items.values()):
            self._say(f"item id {key} is taken")
        if item.get("status", "in_progress") not in ("in_progress", "completed"):
            self._say(f"a new item has status {item['status']!r}")
        if kind in ("message", "function_call") and item["status"] != "in_progress":
            self._say(f"a new {kind} has status {item['status']!r}")
        if kind == "message" and item["content"]:
            self._say("a new message has content")
        if kind in ARGUMENTS and item[ARGUMENTS[kind][1]] != "":
            self._say(f"a new {kind} has {ARGUMENTS[kind][1]} {item[ARGUMENTS[kind][1]]!r}, not an empty string")
        self._items[index] = _Item(key, kind, index)

    def _item_of(self, event: Event) -> _Item | None:
        item = self._items.get(event["output_index"])
        if item is None:
            if not self._resumed:
                self._say(f"names output_index {event['output_index']}, which was never opened")
            return None
        if item.id != event["item_id"]:
            self._say(f"item_id is {event['item_id']}, but output_index {item.index} is {item.id}")
        if item.done is not None:
            self._say(f"comes after item {item.index} was closed")
        return item

    def _close_item(self, event: Event) -> None:
        index, final = event["output_index"], event["item"]
        item = self._items.get(index)
        if item is None:
            if not self._resumed:
                self._say(f"closes output_index {index}, which was never opened")
            return
        if item.done is not None:
            self._say(f"closes item {index} a second time")
            return
        waiting = [other.index for other in self._items.values() if other.done is None and other.index < index]
        if waiting:
            self._say(f"closes item {index} while {waiting} are open")
        if (final["id"], final["type"]) != (item.id, item.kind):
            self._say(f"closes {final['type']} {final['id']}, but {item.kind} {item.id} was opened")
        if final.get("status") in ("in_progress", "searching", "calling"):
            self._say(f"a closed item has status {final['status']!r}")
        self._contents(item, final)
        self._phases_done(item, final)
        item.done = final

    def _contents(self, item: _Item, final: dict[str, Any]) -> None:
        """Whether the closed item holds what was streamed for it."""
        for (stem, index), text in item.texts.items():
            if text.done is None:
                self._say(f"{stem}.done is missing for item {item.index}, index {index}")
        for (name, index), part in item.parts.items():
            if part is None:
                self._say(f"{name} part {index} of item {item.index} was never closed")
        if item.kind in ARGUMENTS:
            stem, key = ARGUMENTS[item.kind]
            streamed = item.texts.get((stem, 0))
            if streamed is None:
                self._say(f"{stem}.done is missing")
            elif streamed.done is not None and streamed.done != final[key]:
                self._say(f"`{key}` is {final[key]!r}, but {streamed.done!r} was streamed")
        if item.kind in ("message", "reasoning"):
            self._part_lists(item, final)

    def _part_lists(self, item: _Item, final: dict[str, Any]) -> None:
        for name in ("content", "summary"):
            opened = [part for (of, _), part in sorted(item.parts.items(), key=lambda entry: entry[0]) if of == name]
            held = final.get(name) or []
            if item.kind == "message" or name == "summary" or opened:
                if [part for part in opened if part is not None] != held:
                    self._say(f"`{name}` differs from the parts that were streamed: {held!r} != {opened!r}")
            elif held:
                self._reasoning_texts(item, held)

    def _reasoning_texts(self, item: _Item, held: list[Any]) -> None:
        """Raw reasoning may be streamed without part events, but not be something else."""
        mine = {index: text.done for (stem, index), text in item.texts.items() if stem == "response.reasoning_text"}
        streamed = [mine[index] for index in sorted(mine)]
        if [part["text"] for part in held] != streamed:
            self._say(f"reasoning text {held!r} differs from what was streamed: {streamed!r}")

    def _reasoning_precedes(self, output: list[dict[str, Any]]) -> None:
        kinds = [item["type"] for item in output]
        assert self._final is not None
        if self._final["status"] == "completed" and kinds[-2:] == ["message", "reasoning"]:
            self._say("the reasoning item follows the message it led to")

    # What is inside an item.

    def _text(self, item: _Item, stem: str, verb: str, event: Event) -> None:
        if item.kind != HOLDERS[stem]:
            self._say(f"belongs to a {HOLDERS[stem]}, not to a {item.kind}")
            return
        index: int = event["summary_index"] if "summary_index" in event else event.get("content_index", 0)
        part = ("summary" if "summary_index" in event else "content", index)
        if (stem in PART_TEXT or "summary_index" in event) and part not in item.parts:
            self._say(f"comes before {part[0]} part {index} was opened")
        if item.parts.get(part) is not None:
            self._say(f"comes after {part[0]} part {index} was closed")
        text = item.texts.setdefault((stem, index), _Text())
        if text.done is not None:
            self._say(f"comes after {stem}.done")
        elif verb == "delta":
            text.deltas.append(event["delta"])
        else:
            text.done = event[STREAMED[stem]]
            if text.done != (joined := "".join(text.deltas)):
                self._say(f"{text.done!r} is not the joined deltas {joined!r}")

    def _part(self, item: _Item, stem: str, verb: str, event: Event) -> None:
        summary = stem == "response.reasoning_summary_part"
        name, index = ("summary", event["summary_index"]) if summary else ("content", event["content_index"])
        part = event["part"]
        if item.kind not in (("reasoning",) if summary else ("message", "reasoning")):
            self._say(f"a {item.kind} has no parts")
        elif verb == "added":
            expected = sum(1 for of, _ in item.parts if of == name)
            if index != expected:
                self._say(f"{name}_index is {index}, not {expected}")
            if part.get("text") or part.get("refusal"):
                self._say("a new part has text")
            item.parts[name, index] = None
        elif (name, index) not in item.parts:
            self._say(f"closes {name} part {index}, which was never opened")
        elif item.parts[name, index] is not None:
            self._say(f"closes {name} part {index} a second time")
        else:
            self._part_text(item, part, index)
            item.parts[name, index] = part

    def _part_text(self, item: _Item, part: dict[str, Any], index: int) -> None:
        stem = {
            "output_text": "response.output_text",
            "refusal": "response.refusal",
            "reasoning_text": "response.reasoning_text",
            "summary_text": "response.reasoning_summary_text",
        }[part["type"]]
        value = part["refusal"] if part["type"] == "refusal" else part["text"]
        text = item.texts.get((stem, index))
        if text is None or text.done is None:
            self._say(f"{stem}.done is missing before the part is closed")
        elif text.done != value:
            self._say(f"the part has {value!r}, but {text.done!r} was streamed")
        if part["type"] == "output_text" and item.annotations.get(index, []) != part["annotations"]:
            self._say(
                f"annotations {part['annotations']!r} differ from those streamed: {item.annotations.get(index, [])!r}"
            )

    def _annotation(self, item: _Item, event: Event) -> None:
        index = event["content_index"]
        if ("content", index) not in item.parts or item.parts["content", index] is not None:
            self._say(f"content part {index} is not open")
        text = item.texts.get(("response.output_text", index))
        if text is not None and text.done is not None:
            self._say("comes after response.output_text.done")
        known = item.annotations.setdefault(index, [])
        if event["annotation_index"] != len(known):
            self._say(f"annotation_index is {event['annotation_index']}, not {len(known)}")
        known.append(event["annotation"])

    def _phase(self, item: _Item, call: str, phase: str) -> None:
        if item.kind != call:
            self._say(f"belongs to a {call}, not to a {item.kind}")
            return
        order = PHASES.get(call, ((phase,),))
        expected = order[len(item.phases)] if len(item.phases) < len(order) else ()
        if phase not in expected:
            self._say(f"comes after {item.phases}, where {' or '.join(expected) or 'nothing'} is due")
        item.phases.append(phase)

    def _phases_done(self, item: _Item, final: dict[str, Any]) -> None:
        status = final.get("status", "completed")
        order = PHASES.get(item.kind, ())
        if status == "completed" and len(item.phases) < len(order):
            self._say(f"a completed {item.kind} went only through {item.phases}")
        if item.phases[-1:] in (["completed"], ["failed"]) and final.get("status") not in (None, item.phases[-1]):
            self._say(f"status {status!r} after {item.kind}.{item.phases[-1]}")
