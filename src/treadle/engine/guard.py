"""Guardrails: input is judged before the model sees it, output before anyone does.

Output is held back in windows that grow, so that the first words are not late and a long answer costs no more than a
few times its length. A word that is only half there at the end of a window waits for the next one, and each window is
judged with what went before it, so no flagged word leaves in parts (docs/adr/0011).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from treadle.errors import ModerationUnavailable
from treadle.ports import ModelChunk, Moderator, Verdict
from treadle.wire.content import InputText, OutputText, PlainText, Refusal
from treadle.wire.items import CustomToolCallOutput, FunctionCallOutput, Item, Message
from treadle.wire.moderation import ModerationError, ModerationOutcome, ModerationResult

if TYPE_CHECKING:
    from treadle.engine.turn import Turn

log = logging.getLogger("treadle.guard")

Mode = Literal["off", "score", "block"]
Side = Literal["input", "output"]

REMOVED = "[Removed by a guardrail.]"
"""Stands in the history for input that was blocked: neither a later turn's model nor the store gets to see it."""

OVERLAP = 400
"""Characters before a window that are judged with it. What is longer may leave in parts."""

UNFINISHED = 64
"""Characters of a word without an end that wait for the next window."""

SLICE = 20_000
"""Characters that are judged in one piece; longer texts are judged in several, which overlap."""


@dataclass(frozen=True, slots=True)
class Check:
    """One moderator and what follows from its verdicts. `noted`: the caller wants to see them."""

    moderator: Moderator
    model: str = ""
    input: Mode = "block"
    output: Mode = "block"
    noted: bool = False

    def mode(self, side: Side) -> Mode:
        return self.input if side == "input" else self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """What is checked in one turn, and how."""

    checks: Sequence[Check]
    message: str
    """What a blocked response says."""
    fail_open: bool = False
    """What cannot be judged passes."""
    first_window: int = 200
    largest_window: int = 800


class Blocked(Exception):
    """What the model writes may not be shown."""


@dataclass(slots=True)
class _Noted:
    """What the caller is told of one side."""

    verdict: Verdict | None = None
    fault: ModerationUnavailable | None = None

    def add(self, verdict: Verdict) -> None:
        if self.verdict is None:
            self.verdict = Verdict(model=verdict.model)
        known = self.verdict
        known.flagged = known.flagged or verdict.flagged
        for name, there in verdict.categories.items():
            known.categories[name] = known.categories.get(name, False) or there
        for name, score in verdict.scores.items():
            known.scores[name] = max(known.scores.get(name, 0.0), score)

    def shown(self, side: Side) -> ModerationResult | ModerationError:
        if self.fault is not None:
            return ModerationError(self.fault.code or "", self.fault.message)
        if self.verdict is None:
            return ModerationError("nothing_judged", f"There was no {side} text to judge.")
        found = self.verdict
        return ModerationResult(
            categories=found.categories,
            category_applied_input_types={name: ["text"] for name in found.categories},
            category_scores=found.scores,
            flagged=found.flagged,
            model=found.model,
        )


@dataclass(slots=True)
class Guard:
    """Judges one turn."""

    rules: Guarding
    heard: bool = False
    """The input was judged, and lost what is flagged."""
    _notes: dict[Side, _Noted] = field(default_factory=lambda: {"input": _Noted(), "output": _Noted()})

    @property
    def message(self) -> str:
        return self.rules.message

    @property
    def blocks_output(self) -> bool:
        return any(check.output == "block" for check in self.rules.checks)

    async def judge_input(self, inputs: list[Item], around: Iterable[str]) -> bool:
        """Whether the input is blocked, or what stands around it. Items that are to blame lose their text."""
        places = [(at, text) for at, item in enumerate(inputs) for text in [text_of(item)] if text]
        flagged = await asyncio.gather(*(self._flagged(text, "input") for _, text in places))
        for (at, _), bad in zip(places, flagged, strict=True):
            if bad:
                inputs[at] = _redacted(inputs[at])
        self.heard = True
        return any(flagged) or any(await asyncio.gather(*(self._flagged(text, "input") for text in around if text)))

    async def filtered(self, batches: AsyncIterator[list[ModelChunk]]) -> AsyncGenerator[list[ModelChunk], None]:
        """The chunks that were judged, as soon as they were. Raises Blocked instead of giving one that may not pass.

        Calls are given when the model has finished, since only whole arguments can be judged.
        """
        held = _Held(self.rules.first_window)
        async for batch in batches:
            for chunk in batch:
                if held.take(chunk) and (passed := await self._judged(held, end=False)):
                    yield passed
        if passed := await self._judged(held, end=True):
            yield passed

    async def conclude(self, turn: Turn) -> None:
        """Judges what is only scored, and tells the caller what it asked for."""
        if any(check.output == "score" for check in self.rules.checks):
            text = "\n\n".join(_answer_of(item) for item in turn.items if isinstance(item, Message))
            if text.strip():
                await self._flagged(text, "output", score=True)
        if any(check.noted for check in self.rules.checks):
            turn.response.moderation = ModerationOutcome(
                input=self._notes["input"].shown("input"), output=self._notes["output"].shown("output")
            )

    async def _judged(self, held: _Held, *, end: bool) -> list[ModelChunk]:
        texts = held.texts(end=end)
        if any(await asyncio.gather(*(self._flagged(text, "output") for text in texts))):
            raise Blocked
        return held.release(self.rules.largest_window, end=end)

    async def _flagged(self, text: str, side: Side, *, score: bool = False) -> bool:
        """Whether the text is blocked. Checks that only score see input at once, and output as a whole (`score`)."""
        wanted: list[Check] = []
        for check in self.rules.checks:
            mode = check.mode(side)
            if mode == "score" if score else mode == "block" or (mode == "score" and side == "input"):
                wanted.append(check)
        pieces = _slices(text)
        found = await asyncio.gather(*(self._ask(check, side, piece) for check in wanted for piece in pieces))
        return any(found)

    async def _ask(self, check: Check, side: Side, text: str) -> bool:
        blocks = check.mode(side) == "block"
        try:
            verdict = await check.moderator.judge(text, check.model)
        except ModerationUnavailable as fault:
            if check.noted:
                self._notes[side].fault = fault
            if blocks and not self.rules.fail_open:
                raise
            log.warning("%s was not judged: %s", side, fault.message)
            return False
        if check.noted:
            self._notes[side].add(verdict)
        return blocks and verdict.flagged


class _Held:
    """Chunks that nobody has judged yet."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._queue: list[ModelChunk] = []
        self._size = 0
        self._calling: list[ModelChunk] | None = None
        """The first call and all behind it."""
        self._parts: dict[str, list[str]] = {"text": [], "reasoning": [], "refusal": []}
        """What the queue says, by kind."""
        self._said = self._parts["text"]
        self._before = dict.fromkeys(self._parts, "")

    def take(self, chunk: ModelChunk) -> bool:
        """Whether the window is full now. The way of each token, so the usual one comes first."""
        if self._calling is not None:
            self._calling.append(chunk)
            return False
        if chunk.call is not None:
            self._calling = [chunk]
            return False
        if (text := chunk.text) and not chunk.reasoning and not chunk.refusal:
            self._queue.append(chunk)
            self._said.append(text)
            self._size += len(text)
        else:
            self._add(chunk)
        return self._size >= self._window

    def texts(self, *, end: bool) -> list[str]:
        """What is to be judged, each with what went before it."""
        calling = self._calling if end else None
        if calling:
            for chunk in calling:
                self._add(chunk)
            self._calling = []
        found = [self._before[kind] + "".join(parts) for kind, parts in self._parts.items() if parts]
        return found + _calls(calling or ())

    def release(self, largest: int, *, end: bool) -> list[ModelChunk]:
        """What was judged, without a word at its end that may go on."""
        passed, kept = self._queue, list[ModelChunk]()
        if not end and self._calling is None:
            passed, kept = _parted(passed)
        for kind, parts in self._parts.items():
            if parts:
                now = "".join(parts)
                left = sum(len(getattr(chunk, kind)) for chunk in kept)
                self._before[kind] = (self._before[kind] + now[: len(now) - left])[-OVERLAP:]
                parts.clear()
        self._queue = []
        for chunk in kept:
            self._add(chunk)
        self._size = 0
        self._window = min(2 * self._window, largest)
        return passed

    def _add(self, chunk: ModelChunk) -> None:
        self._queue.append(chunk)
        if text := chunk.text:
            self._parts["text"].append(text)
            self._size += len(text)
        if text := chunk.reasoning:
            self._parts["reasoning"].append(text)
            self._size += len(text)
        if text := chunk.refusal:
            self._parts["refusal"].append(text)
            self._size += len(text)


def _parted(chunks: list[ModelChunk]) -> tuple[list[ModelChunk], list[ModelChunk]]:
    """The chunks up to the last white space, and the word behind it. Chunks with logprobs are not divided."""
    kept: list[ModelChunk] = []
    size = 0
    passed = chunks
    while passed:
        last = passed[-1]
        kind = "text" if last.text else "reasoning" if last.reasoning else "refusal"
        text: str = getattr(last, kind)
        if not text or text[-1].isspace() or (kept and not getattr(kept[0], kind)):
            break
        word = text.rsplit(None, 1)[-1]
        size += len(word)
        if size > UNFINISHED:
            break
        passed.pop()
        if len(word) == len(text) or last.logprobs:
            kept.insert(0, last)
            if len(word) < len(text):
                break
            continue
        passed.append(msgspec.structs.replace(last, **{kind: text[: -len(word)]}))
        kept.insert(0, msgspec.structs.replace(ModelChunk(), **{kind: word}))
        break
    return passed, kept


def _calls(chunks: Iterable[ModelChunk]) -> list[str]:
    """Names and arguments, as the model wrote them."""
    calls: dict[int, list[str]] = {}
    for chunk in chunks:
        if chunk.call is not None:
            calls.setdefault(chunk.call.slot, []).append((chunk.call.name or "") + (chunk.call.arguments or ""))
    return ["".join(parts) for parts in calls.values() if any(parts)]


def _slices(text: str) -> list[str]:
    if len(text) <= SLICE:
        return [text]
    return [text[max(0, start - OVERLAP) : start + SLICE] for start in range(0, len(text), SLICE)]


def text_of(item: Item) -> str:
    """What a person or a program of the caller's wrote."""
    if isinstance(item, Message):
        content = item.content
    elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
        content = item.output
    else:
        return ""
    if isinstance(content, str):
        return content
    parts = (part for part in content if isinstance(part, InputText | PlainText | OutputText | Refusal))
    return "\n\n".join(part.refusal if isinstance(part, Refusal) else part.text for part in parts)


def _answer_of(message: Message) -> str:
    return text_of(message) if message.role == "assistant" else ""


def _redacted(item: Item) -> Item:
    """A new item, since what the caller sent may be held elsewhere."""
    if isinstance(item, Message):
        part = OutputText(text=REMOVED) if item.role == "assistant" else InputText(REMOVED)
        return msgspec.structs.replace(item, content=[part])
    if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
        return msgspec.structs.replace(item, output=REMOVED)
    return item
