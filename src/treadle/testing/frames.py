"""Server-sent event frames as bytes: strict reading of what a server sent, so that framing faults show."""

from __future__ import annotations

import json
from typing import Any

# Line ends for some readers, though not for the protocol: they have to be escaped inside JSON (bug case 9).
_STRAY_LINE_ENDS = {"\u2028": "U+2028", "\u2029": "U+2029", "\x85": "U+0085", "\x0c": "U+000C", "\x0b": "U+000B"}


class SequenceError(AssertionError):
    """A stream broke the protocol; the message lists every violation, `violations` holds them one by one."""

    def __init__(self, violations: list[str]) -> None:
        super().__init__("\n  ".join([f"{len(violations)} violation(s) of the stream protocol:", *violations]))
        self.violations = violations


def parse_sse(raw: bytes, *, named: bool = True, complete: bool = True) -> list[dict[str, Any]]:
    """The JSON objects of a stream, in order, without `[DONE]`.

    `named`: each frame has an `event:` line equal to its `type` (false: data-only frames, as chat completions have).
    `complete`: the stream was read to its end, so it has to end with `[DONE]`; false allows a cut anywhere.
    Raises SequenceError for every break of contract §7.1: unknown or repeated lines, `id:`, comments inside a frame,
    carriage returns, unescaped line separators, a missing blank line, anything after `[DONE]`.
    """
    violations: list[str] = []
    events: list[dict[str, Any]] = []
    blocks = raw.split(b"\n\n")
    if (rest := blocks.pop()) and complete:
        violations.append(f"the stream ends inside a frame: {rest[:80]!r}")
    done = False
    for number, block in enumerate(blocks):
        where = f"frame {number}"
        try:
            text = block.decode()
        except UnicodeDecodeError as fault:
            violations.append(f"{where}: not UTF-8: {fault}")
            continue
        lines = text.split("\n")
        if lines and all(line.startswith(":") for line in lines):
            continue
        violations.extend(f"{where}: unescaped {name}" for sign, name in _STRAY_LINE_ENDS.items() if sign in text)
        if done:
            violations.append(f"{where}: comes after [DONE]")
        if lines == ["data: [DONE]"]:
            done = True
            continue
        event = _frame(lines, where, violations, named=named)
        if event is not None:
            events.append(event)
    if complete and not done:
        violations.append("the stream does not end with [DONE]")
    if violations:
        raise SequenceError(violations)
    return events


def _frame(lines: list[str], where: str, violations: list[str], *, named: bool) -> dict[str, Any] | None:
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, colon, value = line.partition(": ")
        if "\r" in line:
            violations.append(f"{where}: carriage return")
        if not colon or name not in ("event", "data"):
            violations.append(f"{where}: unexpected line {line[:80]!r}")
        else:
            fields.setdefault(name, []).append(value)
    data = fields.get("data", [])
    if len(data) != 1:
        violations.append(f"{where}: {len(data)} data lines instead of one")
        return None
    try:
        event = json.loads(data[0])
    except ValueError as fault:
        violations.append(f"{where}: data is not JSON: {fault}")
        return None
    if not isinstance(event, dict):
        violations.append(f"{where}: data is not an object")
        return None
    if named and fields.get("event") != [event.get("type")]:
        violations.append(f"{where}: event line {fields.get('event')} differs from type {event.get('type')!r}")
    if not named and "event" in fields:
        violations.append(f"{where}: an event line on a data-only stream")
    return event
