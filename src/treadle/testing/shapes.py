"""Which keys events, items, parts and responses must have on the wire, as data (contract §4, §6, §7.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]

OF_ITEM = ("item_id", "output_index")
OF_PART = (*OF_ITEM, "content_index")
OF_SUMMARY = (*OF_ITEM, "summary_index")

LIFECYCLE = {"response.created", "response.queued", "response.in_progress"}
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}

EVENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(LIFECYCLE | TERMINAL, ("response",)),
    "error": ("message", "error"),
    "response.output_item.added": ("output_index", "item"),
    "response.output_item.done": ("output_index", "item"),
    "response.content_part.added": (*OF_PART, "part"),
    "response.content_part.done": (*OF_PART, "part"),
    "response.output_text.delta": (*OF_PART, "delta", "logprobs"),
    "response.output_text.done": (*OF_PART, "text", "logprobs"),
    "response.output_text.annotation.added": (*OF_PART, "annotation_index", "annotation"),
    "response.refusal.delta": (*OF_PART, "delta"),
    "response.refusal.done": (*OF_PART, "refusal"),
    "response.function_call_arguments.delta": (*OF_ITEM, "delta"),
    "response.function_call_arguments.done": (*OF_ITEM, "arguments"),
    "response.custom_tool_call_input.delta": (*OF_ITEM, "delta"),
    "response.custom_tool_call_input.done": (*OF_ITEM, "input"),
    "response.reasoning_text.delta": (*OF_PART, "delta"),
    "response.reasoning_text.done": (*OF_PART, "text"),
    "response.reasoning_summary_part.added": (*OF_SUMMARY, "part"),
    "response.reasoning_summary_part.done": (*OF_SUMMARY, "part"),
    "response.reasoning_summary_text.delta": (*OF_SUMMARY, "delta"),
    "response.reasoning_summary_text.done": (*OF_SUMMARY, "text"),
    "response.mcp_call_arguments.delta": (*OF_ITEM, "delta"),
    "response.mcp_call_arguments.done": (*OF_ITEM, "arguments"),
    **{
        f"response.{call}.{phase}": OF_ITEM
        for call, phases in {
            "file_search_call": ("in_progress", "searching", "completed"),
            "web_search_call": ("in_progress", "searching", "completed"),
            "mcp_list_tools": ("in_progress", "completed", "failed"),
            "mcp_call": ("in_progress", "completed", "failed"),
            "compaction": ("compacting",),
        }.items()
        for phase in phases
    },
}

# The phases of a call that the server runs itself; each event once, in this order, alternatives together.
PHASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "file_search_call": (("in_progress",), ("searching",), ("completed",)),
    "web_search_call": (("in_progress",), ("searching",), ("completed",)),
    "mcp_list_tools": (("in_progress",), ("completed", "failed")),
    "mcp_call": (("in_progress",), ("completed", "failed")),
}

ITEMS: dict[str, tuple[str, ...]] = {
    "message": ("id", "role", "status", "content"),
    "reasoning": ("id", "summary"),
    "function_call": ("id", "call_id", "name", "arguments", "status"),
    "custom_tool_call": ("id", "call_id", "name", "input"),
    "file_search_call": ("id", "queries", "status"),
    "web_search_call": ("id", "status", "action"),
    "mcp_list_tools": ("id", "server_label", "tools"),
    "mcp_call": ("id", "server_label", "name", "arguments"),
    "mcp_approval_request": ("id", "server_label", "name", "arguments"),
    "compaction": ("id", "encrypted_content"),
    **dict.fromkeys(
        (
            "function_call_output",
            "custom_tool_call_output",
            "code_interpreter_call",
            "image_generation_call",
            "computer_call",
            "local_shell_call",
            "shell_call",
            "apply_patch_call",
            "tool_search_call",
            "tool_search_output",
        ),
        ("id",),
    ),
}

PARTS: dict[str, tuple[str, ...]] = {
    "output_text": ("text", "annotations"),
    "refusal": ("refusal",),
    "reasoning_text": ("text",),
    "summary_text": ("text",),
}

RESPONSE_VALUES = (
    "id object created_at status model output tools tool_choice truncation parallel_tool_calls text top_p "
    "presence_penalty frequency_penalty top_logprobs temperature store background service_tier metadata"
).split()
RESPONSE_KEYS = (
    "completed_at incomplete_details previous_response_id instructions error reasoning usage max_output_tokens "
    "max_tool_calls safety_identifier prompt_cache_key"
).split()
INCOMPLETE_REASONS = {"max_output_tokens", "content_filter", "max_iterations_exceeded"}
ERROR_KEYS = ("type", "code", "message", "param")

USAGE = ("input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details")


def missing(thing: Object, keys: Iterable[str], where: str) -> Iterator[str]:
    """A fault for each of `keys` that is absent or null."""
    yield from (
        f"{where}: `{key}` is {'null' if key in thing else 'missing'}" for key in keys if thing.get(key) is None
    )


def event_faults(event: Object) -> Iterator[str]:
    """What the event itself lacks, apart from its place in the stream."""
    kind = str(event.get("type"))
    if kind not in EVENTS:
        yield f"unknown event type {kind!r}"
        return
    yield from missing(event, EVENTS[kind], kind)
    if isinstance(event.get("item"), dict):
        yield from item_faults(event["item"], kind)
    if isinstance(event.get("part"), dict):
        yield from part_faults(event["part"], kind)
    if isinstance(event.get("response"), dict):
        yield from response_faults(event["response"], kind)
    if kind == "error":
        yield from (f"error: `{key}` is missing" for key in ("code", "param") if key not in event)
        nested = event.get("error") or {}
        yield from (f"error: `error.{key}` is missing" for key in ERROR_KEYS if key not in nested)


def item_faults(item: Object, where: str) -> Iterator[str]:
    kind = str(item.get("type"))
    if kind not in ITEMS:
        yield f"{where}: unknown item type {kind!r}"
        return
    yield from missing(item, ITEMS[kind], f"{where}: {kind}")
    if kind == "message" and item.get("role") != "assistant":
        yield f"{where}: message of role {item.get('role')!r}"
    if "phase" in item and item["phase"] is None:
        yield f"{where}: {kind}: `phase` is null instead of absent"
    for part in [*(item.get("content") or []), *(item.get("summary") or [])]:
        yield from part_faults(part, f"{where}: {kind}")


def part_faults(part: Object, where: str) -> Iterator[str]:
    kind = str(part.get("type"))
    if kind not in PARTS:
        yield f"{where}: unknown part type {kind!r}"
        return
    yield from missing(part, PARTS[kind], f"{where}: {kind}")
    if kind == "output_text" and not isinstance(part.get("logprobs", []), list):
        yield f"{where}: output_text: `logprobs` is null instead of a list"


def response_faults(response: Object, where: str) -> Iterator[str]:
    yield from missing(response, RESPONSE_VALUES, f"{where}: response")
    yield from (f"{where}: response: `{key}` is missing" for key in RESPONSE_KEYS if key not in response)
    text = response.get("text") or {}
    yield from missing(text, ("format",), f"{where}: response.text")
    if "verbosity" in text and text["verbosity"] is None:
        yield f"{where}: response.text: `verbosity` is null instead of absent"
    for item in response.get("output") or []:
        yield from item_faults(item, where)
    if response.get("usage") is not None:
        yield from usage_faults(response["usage"], f"{where}: usage")
    yield from _outcome_faults(response, where)


def usage_faults(usage: Object, where: str) -> Iterator[str]:
    yield from missing(usage, USAGE, where)
    yield from missing(usage.get("input_tokens_details") or {}, ("cached_tokens", "cache_write_tokens"), where)
    yield from missing(usage.get("output_tokens_details") or {}, ("reasoning_tokens",), where)
    counts = [usage.get(key) for key in ("input_tokens", "output_tokens", "total_tokens")]
    if all(isinstance(count, int) for count in counts) and counts[0] + counts[1] != counts[2]:  # type: ignore[operator]
        yield f"{where}: total_tokens is not the sum of the two"


def _outcome_faults(response: Object, where: str) -> Iterator[str]:
    status = response.get("status")
    if status == "completed":
        yield from missing(response, ("completed_at", "usage"), f"{where}: completed response")
    if (status == "failed") != (response.get("error") is not None):
        yield f"{where}: status {status!r} with error {response.get('error')!r}"
    if status == "failed":
        yield from missing(response.get("error") or {}, ("code", "message"), f"{where}: response.error")
    reason = (response.get("incomplete_details") or {}).get("reason")
    if status == "incomplete" and reason not in INCOMPLETE_REASONS:
        yield f"{where}: incomplete for the unknown reason {reason!r}"
    if status != "incomplete" and reason is not None:
        yield f"{where}: status {status!r} with an incomplete reason"
