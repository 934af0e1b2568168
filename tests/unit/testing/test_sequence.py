"""The sequence checker accepts a legal stream and names each way of breaking one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from treadle.testing.sequence import SequenceError, check_sequence

Event = dict[str, Any]
Stream = list[Event]

USAGE = {
    "input_tokens": 3,
    "output_tokens": 4,
    "total_tokens": 7,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 1},
}


def response(status: str, output: list[Event], **changes: Any) -> Event:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "completed_at": 2 if status == "completed" else None,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "model": "m",
        "previous_response_id": None,
        "instructions": None,
        "output": output,
        "error": {"code": "server_error", "message": "Broke."} if status == "failed" else None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "temperature": 1.0,
        "reasoning": None,
        "usage": USAGE if status == "completed" else None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "store": True,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
        **changes,
    }


def event(kind: str, **fields: Any) -> Event:
    return {"type": f"response.{kind}", **fields}


def streamed(stem: str, key: str, text: str, **where: Any) -> Stream:
    extra = {"logprobs": []} if stem == "output_text" else {}
    half = len(text) // 2
    deltas = [event(f"{stem}.delta", delta=piece, **extra, **where) for piece in (text[:half], text[half:])]
    return [*deltas, event(f"{stem}.done", **{key: text}, **extra, **where)]


def item(index: int, new: Event, inside: Stream, final: Event) -> Stream:
    return [
        event("output_item.added", output_index=index, item=new),
        *inside,
        event("output_item.done", output_index=index, item=final),
    ]


def reasoning(index: int) -> tuple[Stream, Event]:
    at = {"item_id": f"rs_{index}", "output_index": index}
    new = {"type": "reasoning", "id": f"rs_{index}", "summary": []}
    part = {"type": "summary_text", "text": "In short."}
    final = {**new, "summary": [part], "content": [{"type": "reasoning_text", "text": "I think."}]}
    inside = [
        *streamed("reasoning_text", "text", "I think.", content_index=0, **at),
        event("reasoning_summary_part.added", summary_index=0, part={**part, "text": ""}, **at),
        *streamed("reasoning_summary_text", "text", "In short.", summary_index=0, **at),
        event("reasoning_summary_part.done", summary_index=0, part=part, **at),
    ]
    return item(index, new, inside, final), final


def message(index: int) -> tuple[Stream, Event]:
    at = {"item_id": f"msg_{index}", "output_index": index}
    new = {"type": "message", "id": f"msg_{index}", "role": "assistant", "status": "in_progress", "content": []}
    note = {"type": "url_citation", "url": "http://a", "title": "a", "start_index": 0, "end_index": 1}
    text = {"type": "output_text", "text": "Hello there", "annotations": [note], "logprobs": []}
    no = {"type": "refusal", "refusal": "Not that."}
    words = streamed("output_text", "text", "Hello there", content_index=0, **at)
    inside = [
        event("content_part.added", content_index=0, part={**text, "text": "", "annotations": []}, **at),
        *words[:-1],
        event("output_text.annotation.added", content_index=0, annotation_index=0, annotation=note, **at),
        words[-1],
        event("content_part.done", content_index=0, part=text, **at),
        event("content_part.added", content_index=1, part={**no, "refusal": ""}, **at),
        *streamed("refusal", "refusal", "Not that.", content_index=1, **at),
        event("content_part.done", content_index=1, part=no, **at),
    ]
    final = {**new, "status": "completed", "content": [text, no]}
    return item(index, new, inside, final), final


def call(index: int) -> tuple[Stream, Event]:
    new = {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{index}", "name": "f", "arguments": ""}
    at = {"item_id": f"fc_{index}", "output_index": index}
    inside = streamed("function_call_arguments", "arguments", '{"a": 1}', **at)
    final = {**new, "arguments": '{"a": 1}', "status": "completed"}
    return item(index, {**new, "status": "in_progress"}, inside, final), final


def custom(index: int) -> tuple[Stream, Event]:
    new = {"type": "custom_tool_call", "id": f"ctc_{index}", "call_id": f"call_{index}", "name": "patch", "input": ""}
    inside = streamed("custom_tool_call_input", "input", "*** text", item_id=f"ctc_{index}", output_index=index)
    final = {**new, "input": "*** text"}
    return item(index, new, inside, final), final


def search(index: int) -> tuple[Stream, Event]:
    at = {"item_id": f"fs_{index}", "output_index": index}
    new = {"type": "file_search_call", "id": f"fs_{index}", "status": "in_progress", "queries": [], "results": None}
    final = {**new, "status": "completed", "queries": ["q"]}
    inside = [event(f"file_search_call.{phase}", **at) for phase in ("in_progress", "searching", "completed")]
    return item(index, new, inside, final), final


def remote(index: int) -> tuple[Stream, Event]:
    at = {"item_id": f"mcp_{index}", "output_index": index}
    new = {"type": "mcp_call", "id": f"mcp_{index}", "server_label": "s", "name": "n", "arguments": ""}
    final = {**new, "arguments": "{}", "output": "1", "status": "completed"}
    inside = [
        event("mcp_call.in_progress", **at),
        *streamed("mcp_call_arguments", "arguments", "{}", **at),
        event("mcp_call.completed", **at),
    ]
    return item(index, {**new, "status": "in_progress"}, inside, final), final


def numbered(stream: Stream) -> Stream:
    """Deep-copied, because a mutation must not reach what other events share."""
    return [{**copy.deepcopy(one), "sequence_number": number} for number, one in enumerate(stream)]


def whole(*made: tuple[Stream, Event], status: str = "completed") -> Stream:
    output = [final for _, final in made]
    body = [one for events, _ in made for one in events]
    start = [event(kind, response=response("in_progress", [])) for kind in ("created", "in_progress")]
    broken = [{"type": "error", "code": "server_error", "message": "Broke.", "param": None}]
    broken[0]["error"] = {"type": "server_error", "code": "server_error", "message": "Broke.", "param": None}
    fault = broken if status == "failed" else []
    return numbered([*start, *body, *fault, event(status, response=response(status, output))])


def legal() -> Stream:
    return whole(reasoning(0), search(1), remote(2), message(3), call(4), custom(5))


def at(stream: Stream, kind: str, nth: int = 0) -> int:
    return [number for number, one in enumerate(stream) if one["type"] == f"response.{kind}"][nth]


def drop(kind: str, nth: int = 0) -> Callable[[Stream], Stream]:
    def mutate(stream: Stream) -> Stream:
        del stream[at(stream, kind, nth)]
        return numbered(stream)

    return mutate


def repeat(kind: str, nth: int = 0) -> Callable[[Stream], Stream]:
    def mutate(stream: Stream) -> Stream:
        where = at(stream, kind, nth)
        return numbered([*stream[: where + 1], stream[where], *stream[where + 1 :]])

    return mutate


def swap(kind: str, other: str, nth: int = 0) -> Callable[[Stream], Stream]:
    def mutate(stream: Stream) -> Stream:
        one, two = at(stream, kind, nth), at(stream, other, nth)
        stream[one], stream[two] = stream[two], stream[one]
        return numbered(stream)

    return mutate


def put(kind: str, path: str, value: Any, nth: int = 0) -> Callable[[Stream], Stream]:
    """Sets `path` in an event; the value `...` removes the key."""

    def mutate(stream: Stream) -> Stream:
        *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
        target: Any = stream[at(stream, kind, nth)]
        for key in way:
            target = target[key]
        if value is ...:
            del target[last]
        else:
            target[last] = value
        return stream

    return mutate


def moved_to_end(stream: Stream) -> Stream:
    where = at(stream, "completed")
    return numbered([*stream[:where], *stream[where + 1 :], stream[where], stream[where - 1]])


def renamed(stream: Stream) -> Stream:
    stream[4]["type"] = "response.thinking.delta"
    return stream


VIOLATIONS: dict[str, tuple[Callable[[Stream], Stream], str]] = {
    "created is missing": (drop("created"), "is first instead of response.created"),
    "in_progress is missing": (drop("in_progress"), "is second instead of response.in_progress"),
    "created twice": (repeat("created"), "is repeated"),
    "created after in_progress": (swap("created", "in_progress"), "is first instead of response.created"),
    "no terminal event": (drop("completed"), "no terminal event"),
    "two terminal events": (repeat("completed"), "comes after the terminal event"),
    "an event after the terminal one": (moved_to_end, "comes after the terminal event"),
    "a gap in the numbers": (put("output_text.delta", "sequence_number", 99), "sequence_number is 99"),
    "no number": (put("output_text.delta", "sequence_number", ...), "sequence_number is None"),
    "an unknown event": (renamed, "unknown event type"),
    "wrong status at the start": (put("in_progress", "response/status", "queued"), "carries status 'queued'"),
    "wrong status at the end": (put("completed", "response/status", "in_progress"), "carries status 'in_progress'"),
    "output before any was made": (put("created", "response/output", [message(0)[1]]), "carries output before"),
    "the response id changes": (put("completed", "response/id", "resp_2"), "response.id changed"),
    "the model name changes": (put("completed", "response/model", "m2"), "response.model changed"),
    "an item is not opened": (drop("output_item.added", 3), "names output_index 3, which was never opened"),
    "an item is opened twice": (repeat("output_item.added", 3), "output_index is 3, not 4"),
    "an index is skipped": (put("output_item.added", "output_index", 7, 3), "output_index is 7, not 3"),
    "an item id is reused": (put("output_item.added", "item/id", "rs_0", 3), "item id rs_0 is taken"),
    "an item is not closed": (drop("output_item.done", 3), "item 3 (msg_3) was never closed"),
    "an item is closed twice": (repeat("output_item.done", 3), "closes item 3 a second time"),
    "an item is closed out of order": (drop("output_item.done", 1), "closes item 2 while [1] are open"),
    "an item is closed under another id": (put("output_item.done", "item/id", "msg_x", 3), "closes message msg_x"),
    "a closed item is in progress": (put("output_item.done", "item/status", "in_progress", 3), "a closed item has"),
    "a new message has content": (
        put("output_item.added", "item/content", [{"type": "refusal", "refusal": "x"}], 3),
        "a new message has content",
    ),
    "a new message is completed": (put("output_item.added", "item/status", "completed", 3), "a new message has status"),
    "the id of a delta differs": (put("output_text.delta", "item_id", "msg_x"), "item_id is msg_x"),
    "the index of a delta differs": (
        put("output_text.delta", "output_index", 2),
        "item_id is msg_3, but output_index 2",
    ),
    "an event after its item is closed": (
        swap("output_item.done", "refusal.done"),
        "names output_index 3, which was never opened",
    ),
    "a delta before its part": (drop("content_part.added"), "comes before content part 0 was opened"),
    "a part is not closed": (drop("content_part.done"), "content part 0 of item 3 was never closed"),
    "a part is closed twice": (repeat("content_part.done"), "closes content part 0 a second time"),
    "a part index is skipped": (put("content_part.added", "content_index", 5), "content_index is 5, not 0"),
    "a new part has text": (put("content_part.added", "part/text", "x"), "a new part has text"),
    "text.done is missing": (drop("output_text.done"), "response.output_text.done is missing before the part"),
    "a delta after done": (swap("output_text.delta", "output_text.done"), "comes after response.output_text.done"),
    "done after its part": (swap("output_text.done", "content_part.done"), "comes after content part 0 was closed"),
    "done is not the joined deltas": (put("output_text.done", "text", "Hello"), "is not the joined deltas"),
    "the part is not the text": (put("content_part.done", "part/text", "Hello"), "but 'Hello there' was streamed"),
    "the item is not the parts": (
        put("output_item.done", "item/content/0/text", "Hello", 3),
        "`content` differs from the parts",
    ),
    "the refusal is not the deltas": (put("refusal.done", "refusal", "No."), "is not the joined deltas"),
    "an annotation is not in the part": (put("content_part.done", "part/annotations", []), "annotations [] differ"),
    "an annotation is out of turn": (
        put("output_text.annotation.added", "annotation_index", 1),
        "annotation_index is 1",
    ),
    "an annotation after done": (
        swap("output_text.annotation.added", "output_text.done"),
        "comes after response.output_text.done",
    ),
    "arguments at the start": (put("output_item.added", "item/arguments", "{}", 4), "not an empty string"),
    "arguments.done is missing": (drop("function_call_arguments.done"), "function_call_arguments.done is missing"),
    "arguments.done differs": (put("function_call_arguments.done", "arguments", "{}"), "is not the joined deltas"),
    "arguments of the item differ": (put("output_item.done", "item/arguments", "{}", 4), "`arguments` is '{}'"),
    "custom input differs": (put("output_item.done", "item/input", "x", 5), "`input` is 'x'"),
    "reasoning text differs": (put("output_item.done", "item/content/0/text", "x"), "reasoning text"),
    "a summary part is not opened": (drop("reasoning_summary_part.added"), "comes before summary part 0 was opened"),
    "a summary part is not closed": (drop("reasoning_summary_part.done"), "summary part 0 of item 0 was never closed"),
    "a search phase is missing": (drop("file_search_call.searching"), "where searching is due"),
    "a search does not complete": (drop("file_search_call.completed"), "went only through"),
    "a call does not complete": (drop("mcp_call.completed"), "went only through"),
    "a completed call says failed": (put("output_item.done", "item/status", "failed", 2), "after mcp_call.completed"),
    "a phase of another kind": (
        put("mcp_call.in_progress", "type", "response.web_search_call.in_progress"),
        "belongs to",
    ),
    "the final output lacks an item": (
        put("completed", "response/output", [message(0)[1]]),
        "6 items were streamed, the final output has 1",
    ),
    "the final output differs": (put("completed", "response/output/3/content/0/text", "x"), "output[3] differs"),
    "annotations are null": (put("output_item.done", "item/content/0/annotations", None, 3), "`annotations` is null"),
    "logprobs are missing": (put("output_text.delta", "logprobs", ...), "`logprobs` is missing"),
    "usage details are missing": (
        put("completed", "response/usage/input_tokens_details", {"cached_tokens": 0}),
        "`cache_write_tokens` is missing",
    ),
    "usage does not add up": (put("completed", "response/usage/total_tokens", 8), "not the sum"),
    "usage is null": (put("completed", "response/usage", None), "`usage` is null"),
    "temperature is null": (put("completed", "response/temperature", None), "`temperature` is null"),
    "verbosity is null": (put("completed", "response/text/verbosity", None), "`verbosity` is null"),
    "a required key is missing": (put("completed", "response/prompt_cache_key", ...), "`prompt_cache_key` is missing"),
    "a foreign role": (put("output_item.added", "item/role", "user", 3), "message of role 'user'"),
    "an unknown item": (put("output_item.added", "item/type", "dream", 3), "unknown item type 'dream'"),
}


def test_a_legal_stream_passes() -> None:
    check_sequence(legal())


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_named(name: str) -> None:
    mutate, expected = VIOLATIONS[name]
    with pytest.raises(SequenceError) as caught:
        check_sequence(mutate(legal()))
    assert expected in str(caught.value)


def test_every_violation_is_reported_not_only_the_first() -> None:
    stream = put("completed", "response/id", "resp_2")(drop("in_progress")(legal()))
    with pytest.raises(SequenceError) as caught:
        check_sequence(stream)
    assert len(caught.value.violations) == 2


def test_reasoning_after_its_message_is_a_violation_but_before_the_next_one_is_fine() -> None:
    check_sequence(whole(message(0), reasoning(1), message(2)))
    with pytest.raises(SequenceError, match="follows the message it led to"):
        check_sequence(whole(message(0), reasoning(1)))


def test_items_may_overlap_as_long_as_they_open_and_close_in_order() -> None:
    (one, first), (two, second) = search(0), search(1)
    mixed = [one[0], two[0], one[1], two[1], two[2], one[2], one[3], one[4], two[3], two[4]]
    check_sequence(whole((mixed, first), ([], second)))


def test_an_incomplete_and_an_empty_response_are_legal() -> None:
    check_sequence(whole(message(0), status="incomplete"))
    check_sequence(whole())


def test_a_failure_needs_the_error_before_it_and_an_error_the_failure_after_it() -> None:
    stream = whole(message(0), status="failed")
    check_sequence(stream)
    with pytest.raises(SequenceError, match="without an error event right before it"):
        check_sequence(numbered([*stream[:-2], stream[-1]]))
    with pytest.raises(SequenceError, match="no terminal event; the last is 'error'"):
        check_sequence(stream[:-1])
    with pytest.raises(SequenceError, match=r"which only response\.failed may follow"):
        check_sequence(whole(message(0))[:-1] + numbered(stream)[-2:-1] + whole(message(0))[-1:])


def test_a_prefix_is_legal_only_when_said_so() -> None:
    check_sequence(legal()[:20], complete=False)
    with pytest.raises(SequenceError, match="no terminal event"):
        check_sequence(legal()[:20])


def test_a_resumed_stream_is_checked_from_its_first_number() -> None:
    stream = legal()
    check_sequence(stream[15:], first=15)
    with pytest.raises(SequenceError, match="sequence_number is 15, not 14"):
        check_sequence(stream[15:], first=14)


def test_a_queued_response_starts_with_its_place_in_the_queue() -> None:
    start = [
        event("created", response=response("queued", [])),
        event("queued", response=response("queued", [])),
        event("in_progress", response=response("in_progress", [])),
    ]
    check_sequence(numbered([*start, *whole(message(0))[2:]]))


def test_an_empty_stream_is_no_stream() -> None:
    with pytest.raises(SequenceError, match="no terminal event"):
        check_sequence([])
