"""A history as notes, written by a model: in one call, or part by part where the history does not fit into one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from treadle.engine.counting import Count
from treadle.errors import ContextTooLong, UpstreamBadStream
from treadle.ports import ModelMessage, ModelRequest, ModelUsage, Route, TextPart

MIN_PART = 100
"""Tokens; a model that cannot take this much of a history cannot summarise it."""
_LABELS = {"user": "User", "assistant": "Assistant", "tool": "Result", "system": "System", "developer": "System"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """What the operator has settled. `threshold` 0: only where a request wants it."""

    prompt: str = ""
    prefix: str = ""
    model: str = ""
    threshold: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacting:
    """Compaction in one turn: from how many tokens on, who writes the notes, and how they are sealed."""

    threshold: int
    rules: CompactionRules
    route: Callable[[], Awaitable[Route]]
    count: Count
    seal: Callable[[str], str]
    cache_key: str | None = None


@dataclass(slots=True)
class Written:
    """Notes, and what it cost to write them."""

    text: str
    usage: ModelUsage


def record_of(messages: Sequence[ModelMessage]) -> list[str]:
    """The messages as material, one text each."""
    found: list[str] = []
    for message in messages:
        lines = [_text(message)]
        lines += [f"(calls {call.name} with {call.arguments})" for call in message.calls]
        if text := "\n".join(line for line in lines if line):
            found.append(f"{_LABELS[message.role]}: {text}")
    return found


async def summarize(
    record: Sequence[str], so_far: str, compacting: Compacting, instructions: str | None = None
) -> Written:
    """Notes on `record`, which continue those `so_far`. Whatever the model server refuses is raised."""
    route = await compacting.route()
    writer = await asyncio.to_thread(_Writer, route, compacting, instructions)
    notes, left = so_far, list(record)
    while left:
        part, rest = await asyncio.to_thread(writer.part, left, notes)
        try:
            notes = await writer.write(part, notes)
        except ContextTooLong:
            await asyncio.to_thread(writer.halve, part)
            continue
        left = rest
    return Written(notes, writer.usage)


class _Writer:
    """Calls to the model that writes, and how much it is known to take at a time."""

    def __init__(self, route: Route, compacting: Compacting, instructions: str | None) -> None:
        self._route = route
        self._count = compacting.count
        self._prompt = compacting.rules.prompt
        self._cache_key = compacting.cache_key
        if instructions:
            self._prompt += f"\n\nThe assistant works under these instructions:\n{instructions}"
        self.usage = ModelUsage()
        window = route.capabilities.context_window
        # Half for the record; the rest for the prompt, for the notes so far, and for those that are written.
        self._most: int | None = None if window is None else max(MIN_PART, window // 2 - self._count(self._prompt))

    def part(self, left: Sequence[str], notes: str) -> tuple[list[str], list[str]]:
        """As much from the front of `left` as fits into one call, and what remains."""
        if self._most is None:
            return list(left), []
        room = max(MIN_PART, self._most - self._count(notes) // 2)
        part: list[str] = []
        for index, text in enumerate(left):
            tokens = self._count(text)
            if tokens <= room:
                part.append(text)
                room -= tokens
                continue
            if part:
                return part, list(left[index:])
            at = max(1, len(text) * room // tokens)
            return [text[:at]], [text[at:], *left[index + 1 :]]
        return part, []

    def halve(self, part: Sequence[str]) -> None:
        """The part was too long. ContextTooLong if a shorter one is not worth a try."""
        size = sum(map(self._count, part)) // 2
        if size < MIN_PART:
            raise ContextTooLong("The model that writes summaries takes too little to summarise anything.")
        self._most = size

    async def write(self, part: Sequence[str], notes: str) -> str:
        route = self._route
        before = f"The notes so far:\n{notes}\n\nThe record goes on:\n\n" if notes else "The record:\n\n"
        request = ModelRequest(
            model=route.upstream,
            messages=[
                ModelMessage("developer" if route.capabilities.developer_role else "system", self._prompt),
                ModelMessage("user", before + "\n\n".join(part)),
            ],
            prompt_cache_key=self._cache_key,
            watched=False,
        )
        texts: list[str] = []
        async with aclosing(route.model.stream(request)) as batches:
            async for batch in batches:
                for chunk in batch:
                    texts.append(chunk.text)
                    if chunk.usage is not None:
                        self._add(chunk.usage)
        text = "".join(texts).strip()
        if not text:
            raise UpstreamBadStream("The model wrote no summary.")
        return text

    def _add(self, usage: ModelUsage) -> None:
        total = self.usage
        total.input_tokens += usage.input_tokens
        total.output_tokens += usage.output_tokens
        total.cached_tokens += usage.cached_tokens
        total.cache_write_tokens += usage.cache_write_tokens
        total.reasoning_tokens += usage.reasoning_tokens


def _text(message: ModelMessage) -> str:
    if isinstance(message.content, str):
        text = message.content
    else:
        text = "\n".join(part.text if isinstance(part, TextPart) else "[an attachment]" for part in message.content)
    return "\n".join(part for part in (text, message.refusal) if part)
