"""What the model is shown, kept within its window: compaction before a round, then truncation, then the error.

Owned by the loop. Before a round `make_room` compacts a context that is over its threshold; when a model refuses a
context as too long, `shorten` compacts it more, or drops turns where the request permits that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from treadle.engine.calls import announce, conclude
from treadle.engine.counting import context_tokens, counted, fixed, most_tokens, texts_of
from treadle.engine.cut import cut_at
from treadle.engine.dropping import without_oldest
from treadle.engine.notes import LARGE, Notes, Summary, kept_inside, said_by_user, standing_in, to_record
from treadle.engine.render import render
from treadle.engine.summarize import Compacting, record_of, summarize
from treadle.engine.turn import Turn
from treadle.errors import ServerError
from treadle.ports import ModelMessage, ModelUsage
from treadle.wire.base import encode
from treadle.wire.events import CompactionCompacting, Event
from treadle.wire.items import Compaction, Item, McpListTools, Message, OpaqueItem, TypedItem

log = logging.getLogger("treadle.window")

LEVELS = 3
"""How hard a context can be compacted: all but the newest turn, all but the newest round, all."""


class Window:
    """The messages of the next model call, and how many tokens they are known to have."""

    def __init__(self, turn: Turn, messages: list[ModelMessage]) -> None:
        self.messages = messages
        self._turn = turn
        self._known = 0
        """Tokens of the first `_since` messages with the tools, as a model server reported or as we counted them."""
        self._since = 0
        self._level = 0
        """How hard the next refusal makes us compact."""
        self._gave_up = False
        """The model that writes notes failed; this turn does not ask it again."""
        self._useless = False
        """The last notes were longer than what they stand for."""
        self._attempt: tuple[int, int, int] | None = None
        """What was tried last: trying it again would come to the same."""
        self._floor = 0
        """What compaction could not bring the context under."""

    def heard(self, usage: ModelUsage | None) -> None:
        """What the model server reported of these messages and its answer to them. Zero is no report."""
        if usage is not None and usage.input_tokens:
            self._known, self._since = usage.input_tokens, len(self.messages)
            self._turn.context_tokens = usage.input_tokens + usage.output_tokens
        else:
            self._turn.context_tokens = 0

    def add(self, said: list[ModelMessage]) -> None:
        """What a round adds for the next."""
        self.messages = self.messages + said

    async def make_room(self) -> list[Event]:
        """Compacts, if the request or the server wants it and the context is over the threshold."""
        compacting = self._turn.plan.compacting
        if compacting is None or self._gave_up:
            return []
        tokens = await self._tokens(compacting)
        if tokens <= max(compacting.threshold, self._floor):
            return []
        for level in (0, 1):
            if (out := await self._compact(compacting, compacting.threshold, level)) is not None:
                return out
            if self._useless or self._gave_up:
                break
        self._floor = tokens + compacting.threshold // 4
        return []

    async def shorten(self) -> list[Event] | None:
        """After a refusal: a shorter context, with the events of how it became so. None if nothing can go."""
        turn, compacting = self._turn, self._turn.plan.compacting
        while compacting is not None and self._level < LEVELS and not self._gave_up:
            tokens = await context_tokens(self.messages, turn.plan.tools.functions, compacting.count)
            level, self._level = self._level, self._level + 1
            if (out := await self._compact(compacting, min(compacting.threshold, tokens // 2), level)) is not None:
                return out
        if turn.response.truncation == "auto" and (left := without_oldest(self.messages, _characters)) is not None:
            log.info("%s: %d messages are dropped", turn.response.id, len(self.messages) - len(left))
            self.messages, self._known, self._since = left, 0, 0
            return []
        return None

    async def _tokens(self, compacting: Compacting) -> int:
        """Of all messages; 0 if they are certainly under the threshold, which most are and which costs no counting."""
        turn, functions = self._turn, self._turn.plan.tools.functions
        reported = 0 if self._known or turn.rounds else turn.plan.context_tokens
        if reported:
            # Of the turn before, which leaves what is new in this one.
            new = self._render([item for item in turn.plan.inputs if not isinstance(item, OpaqueItem)])
        else:
            new, reported = self.messages[self._since :], self._known
        if reported + most_tokens(new, () if reported else functions) <= compacting.threshold:
            return 0
        if reported:
            self._known = reported + fixed(new) + await counted(texts_of(new), compacting.count)
        else:
            self._known = await context_tokens(self.messages, functions, compacting.count)
        self._since = len(self.messages)
        return self._known

    async def _compact(self, compacting: Compacting, limit: int, level: int) -> list[Event] | None:
        """Replaces the older part by notes. None if there is nothing to replace, or it would be no shorter."""
        turn, shown, lead = self._turn, self._shown(), self._turn.plan.lead
        at = cut_at(shown, lead, level)
        covered, rest = shown[lead:at], shown[at:]
        said = said_by_user(covered)
        # The question that is being answered stays: behind the notes, or before them where the rest cannot be inside.
        asked = said.pop() if said and not said_by_user(rest) else None
        covered = [item for item in covered if item is not asked]
        kept = await self._kept(said, limit // 4 if level == 0 else 0, compacting)
        material = to_record(covered)
        attempt = (at, len(kept), len(turn.items))
        if len(material) <= len(kept) or attempt == self._attempt:
            return None
        self._attempt = attempt
        so_far = "\n\n".join(item.text for item in covered if isinstance(item, Summary))
        try:
            written = await summarize(record_of(self._render(material)), so_far, compacting)
        except ServerError as fault:
            log.warning("%s: its history could not be summarised: %s", turn.response.id, fault.message)
            self._gave_up = True
            return None
        turn.add_usage(written.usage)
        turn.notes_tokens += written.usage.output_tokens
        if asked is not None and kept_inside([asked, *rest]) is not None:
            rest = [asked, *rest]
        elif asked is not None:
            kept.append(asked)
        notes = Notes(
            summary=written.text,
            prefix=compacting.rules.prefix,
            standing=standing_in(covered),
            kept=kept,
            rest=kept_inside(rest),
            left=len(rest),
        )
        return await self._take(shown[:lead], notes, rest, compacting)

    async def _take(
        self, lead: list[TypedItem], notes: Notes, rest: list[TypedItem], compacting: Compacting
    ) -> list[Event] | None:
        """Goes on with the notes, unless they are longer than what they stand for."""
        turn, functions = self._turn, self._turn.plan.tools.functions
        item = notes.sealed(compacting.seal)
        view = [*lead, *notes.before(item.id, rest)]
        messages = self._render(view, instructions=True)
        before = await context_tokens(self.messages, functions, compacting.count)
        after = await context_tokens(messages, functions, compacting.count)
        self._useless = after >= before
        if self._useless:
            log.info("%s: its notes are longer than its history", turn.response.id)
            return None
        out: list[Event] = []
        index = announce(turn, item, out)
        out.append(
            CompactionCompacting(sequence_number=turn.next_sequence(), item_id=item.id or "", output_index=index)
        )
        conclude(turn, item, index, out)
        turn.view, turn.view_from = view, len(turn.items)
        turn.carried = self._carried(rest)
        self.messages, self._known, self._since = messages, after, len(messages)
        self._floor = after + compacting.threshold // 4 if after > compacting.threshold else 0
        return out

    async def _kept(self, said: list[Message], budget: int, compacting: Compacting) -> list[Message]:
        """The user's messages that go on word for word: the latest that fit."""
        kept: list[Message] = []
        for message in reversed(said):
            if len(encode(message)) > LARGE:
                continue  # a picture, most likely: a word on it in the notes must do
            rendered = self._render([message])
            budget -= fixed(rendered) + await counted(texts_of(rendered), compacting.count)
            if budget < 0:
                break
            kept.append(message)
        return kept[::-1]

    def _carried(self, rest: Sequence[TypedItem]) -> list[Item]:
        """What of the history goes on in the thread that begins here: what the model still sees, and lists of tools."""
        ids = {item.id for item in rest}
        return [item for item in self._turn.plan.history.items if isinstance(item, McpListTools) or item.id in ids]

    def _shown(self) -> list[TypedItem]:
        """Everything the model is shown now, as items."""
        turn = self._turn
        items = turn.items[turn.view_from :]
        later = [item for item in items if not isinstance(item, OpaqueItem | McpListTools | Compaction)]
        return [*(turn.plan.shown if turn.view is None else turn.view), *later]

    def _render(self, items: list[TypedItem], *, instructions: bool = False) -> list[ModelMessage]:
        plan = self._turn.plan
        return render(
            items,
            plan.tools,
            plan.capabilities,
            plan.instructions if instructions else None,
            images=self._turn.images,
            attached=plan.attached,
        )


def _characters(messages: list[ModelMessage]) -> int:
    return fixed(messages) * 4 + sum(map(len, texts_of(messages)))
