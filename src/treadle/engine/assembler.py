"""Model chunks in, items and events out: a synchronous state machine, one per model call.

No await, no validation, no growing strings on the way of a delta: parts are collected and joined when an item closes.
Items open in increasing output index; those still open at the end of the call close in that order (contract §7.2).
"""

from __future__ import annotations

from msgspec import Raw, Struct, field

from treadle.engine.calls import Call, announce, conclude, is_object, start_call
from treadle.engine.citations import CitedFile, Source, annotation
from treadle.engine.toolset import Binding
from treadle.engine.turn import Turn
from treadle.errors import UpstreamBadStream
from treadle.ids import new_id
from treadle.ports import CallFragment, FinishReason, ModelChunk, ModelUsage, TokenLogprob, ToolOutcome
from treadle.wire.content import OutputText, ReasoningText, Refusal
from treadle.wire.events import (
    AnnotationAdded,
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    RefusalDelta,
    RefusalDone,
)
from treadle.wire.items import Message, Reasoning, Status


class ModelCallMade(Struct):
    """A finished call of this round and what its name means."""

    call: Call
    binding: Binding
    arguments: str


class _Part(Struct):
    """The open part of the open message or reasoning item."""

    item: Message | Reasoning
    index: int
    kind: str
    content_index: int = 0
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    annotations: list[Raw] = field(default_factory=list)
    closed: list[OutputText | Refusal] = field(default_factory=list)


class _Slot(Struct):
    """A call of the model server; `call` exists once its name is known, `early` are arguments that came before."""

    id: str | None = None
    call: Call | None = None
    early: str = ""


class Assembler:
    """Folds the chunks of one model call into the turn. `feed` any number of times, then `finish` or `abort`."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._part: _Part | None = None
        self._slots: dict[int, _Slot] = {}
        self._open: list[_Part | Call] = []
        self._late: list[Call] = []
        """Calls that show nothing before they are whole, and then after everything else."""
        self._end: Status = "completed"
        self._last: _Part | Call | None = None
        self._blank = ""
        self._blank_logprobs: list[TokenLogprob] = []
        self._early_citations: list[tuple[CitedFile, str]] = []
        """Of a text that has not begun, with the white space before each."""
        self.first_index = len(turn.items)
        self.finish_reason: FinishReason | None = None
        self.usage: ModelUsage | None = None

    def feed(self, chunks: list[ModelChunk], out: list[Event]) -> None:
        """Appends to `out` what the client sees of `chunks`."""
        for chunk in chunks:
            if chunk.text:
                self._text(chunk.text, chunk.logprobs, out)
            if chunk.reasoning:
                self._reasoning(chunk.reasoning, out)
            if chunk.refusal:
                self._refusal(chunk.refusal, out)
            if chunk.call is not None:
                self._fragment(chunk.call, out)
            if chunk.finish is not None:
                self.finish_reason = chunk.finish
            if chunk.usage is not None:
                self.usage = chunk.usage
            if chunk.service_tier is not None:
                self._turn.response.service_tier = chunk.service_tier

    @property
    def called(self) -> bool:
        """Whether the model has begun a call."""
        return any(slot.call is not None for slot in self._slots.values())

    def finish(self, status: Status, out: list[Event]) -> list[ModelCallMade]:
        """Closes what is open and returns the calls. `status` is what the item cut off at the end gets.

        Raises UpstreamBadStream for a call that never got a name; one without arguments as well is no call.
        """
        if any(slot.call is None and slot.early for slot in self._slots.values()):
            raise UpstreamBadStream("The model server sent a tool call without a name.")
        if self._blank and not self.called and self._part is None:
            self._open_message("text", out)
            self._append_text("", None, out)
        self._end, self._last = status, self._open[-1] if self._open else None
        calls = [entry for entry in self._open if isinstance(entry, Call)] + self._late
        for call in calls:
            if call.pending:
                call.close(self._status(call), out)
        self._advance(out)
        return [ModelCallMade(call, call.binding, call.arguments) for call in calls]

    def settle(self, call: Call, outcome: ToolOutcome, out: list[Event]) -> None:
        """The call was run. What stands behind it in the output closes too, up to the next call that runs."""
        call.settle(outcome, out)
        call.settled = True
        self._advance(out)

    def _status(self, entry: _Part | Call) -> Status:
        """Only the last entry can have been cut off; calls before it if what they have is no object."""
        if self._end == "completed":
            return "completed"
        if isinstance(entry, Call):
            return "completed" if entry is not self._last and is_object(entry.arguments) else self._end
        return self._end if entry is self._last and entry is self._part else "completed"

    def _advance(self, out: list[Event]) -> None:
        """Closes entries in the order of their indexes (contract §7.2), up to a call that is still to be run."""
        while self._open:
            entry = self._open[0]
            if not isinstance(entry, Call):
                self._close(entry, self._status(entry), out)
            elif not entry.pending:
                entry.close(self._status(entry), out)
            elif not entry.settled:
                if self._end == "completed":
                    return
                entry.settle(ToolOutcome("Not run: the answer was cut off.", failed=True), out)
            self._open.pop(0)
        late, self._late = self._late, []
        for call in late:
            if self._end == "completed":
                call.close("completed", out)

    def refuse(self, message: str, out: list[Event]) -> None:
        """The answer ends here, with a refusal of ours."""
        self._blank, self._blank_logprobs, self._early_citations = "", [], []
        self._refusal(message, out)
        self.finish("completed", out)

    def abort(self, out: list[Event]) -> None:
        """Closes what is open as incomplete."""
        self._late = []
        while self._open:
            entry = self._open.pop(0)
            if not isinstance(entry, Call):
                self._close(entry, "incomplete", out)
            elif not entry.pending:
                entry.close("incomplete", out)
            elif not entry.settled:
                entry.settle(ToolOutcome("Not finished: the response ended before.", failed=True), out)

    # ------------------------------------------------------------------------------------------ text

    def _text(self, text: str, logprobs: list[TokenLogprob] | None, out: list[Event]) -> None:
        part = self._part
        if part is None or part.kind != "text":
            # White space alone opens no message: models pad their calls with it. It leads the text that follows.
            if not text.strip() and not (part is not None and part.kind == "refusal"):
                self._blank += text
                self._blank_logprobs += logprobs or ()
                return
            self._open_message("text", out)
        self._append_text(text, logprobs, out)

    def cite(self, source: Source, out: list[Event]) -> None:
        """The text so far ends with something that `source` supports."""
        part = self._part
        if part is None or part.kind != "text":
            if isinstance(source, CitedFile):
                self._early_citations.append((source, self._blank))
            return
        self._annotate(annotation(source, "".join(part.texts)), part, out)

    def _annotate(self, made: Raw, part: _Part, out: list[Event]) -> None:
        if made in part.annotations:
            return  # marks side by side that lead to the same file
        out.append(
            AnnotationAdded(
                sequence_number=self._turn.next_sequence(),
                item_id=part.item.id or "",
                output_index=part.index,
                content_index=part.content_index,
                annotation_index=len(part.annotations),
                annotation=made,
            )
        )
        part.annotations.append(made)

    def _append_text(self, text: str, logprobs: list[TokenLogprob] | None, out: list[Event]) -> None:
        part = self._part
        assert part is not None
        if self._blank:
            text, self._blank = self._blank + text, ""
            logprobs, self._blank_logprobs = [*self._blank_logprobs, *(logprobs or ())], []
        early, self._early_citations = self._early_citations, []
        for source, before in early:
            self._annotate(annotation(source, before), part, out)
        part.texts.append(text)
        if logprobs:
            part.logprobs.extend(logprobs)
        out.append(
            OutputTextDelta(
                sequence_number=self._turn.next_sequence(),
                item_id=part.item.id or "",
                output_index=part.index,
                content_index=part.content_index,
                delta=text,
                logprobs=logprobs or [],
            )
        )

    def _refusal(self, text: str, out: list[Event]) -> None:
        if self._part is None or self._part.kind != "refusal":
            self._open_message("refusal", out)
        part = self._part
        assert part is not None
        part.texts.append(text)
        out.append(
            RefusalDelta(
                sequence_number=self._turn.next_sequence(),
                item_id=part.item.id or "",
                output_index=part.index,
                content_index=part.content_index,
                delta=text,
            )
        )

    def _open_message(self, kind: str, out: list[Event]) -> None:
        """Opens a part of `kind`, inside the open message if there is one."""
        part = self._part
        if part is not None and isinstance(part.item, Message):
            part.closed.append(self._finish_part(part, out))
            part.kind, part.texts, part.logprobs, part.annotations = kind, [], [], []
            part.content_index += 1
        else:
            self._leave_part(out)
            message = Message(id=new_id("msg"), role="assistant", status="in_progress", content=[])
            part = self._part = _Part(message, announce(self._turn, message, out), kind)
            self._open.append(part)
        empty = OutputText(text="") if kind == "text" else Refusal("")
        out.append(
            ContentPartAdded(
                sequence_number=self._turn.next_sequence(),
                item_id=part.item.id or "",
                output_index=part.index,
                content_index=part.content_index,
                response_id=self._turn.response.id,
                part=empty,
            )
        )

    def _reasoning(self, text: str, out: list[Event]) -> None:
        part = self._part
        if part is None or part.kind != "reasoning":
            self._leave_part(out)
            item = Reasoning(id=new_id("rs"), summary=[], status="in_progress")
            part = self._part = _Part(item, announce(self._turn, item, out), "reasoning")
            self._open.append(part)
            out.append(
                ContentPartAdded(
                    sequence_number=self._turn.next_sequence(),
                    item_id=item.id or "",
                    output_index=part.index,
                    content_index=0,
                    response_id=self._turn.response.id,
                    part=ReasoningText(""),
                )
            )
        part.texts.append(text)
        out.append(
            ReasoningTextDelta(
                sequence_number=self._turn.next_sequence(),
                item_id=part.item.id or "",
                output_index=part.index,
                content_index=0,
                delta=text,
            )
        )

    # ----------------------------------------------------------------------------------------- calls

    def _fragment(self, fragment: CallFragment, out: list[Event]) -> None:
        slot = self._slots.get(fragment.slot)
        if slot is None:
            slot = self._slots[fragment.slot] = _Slot()
        if fragment.id and slot.id is None:
            slot.id = fragment.id
        if fragment.name and slot.call is None:
            slot.call = self._open_call(slot, fragment.name, out)
            if slot.early:
                slot.call.grow(slot.early, out)
        if fragment.arguments:
            if slot.call is None:
                slot.early += fragment.arguments
            else:
                slot.call.grow(fragment.arguments, out)

    def _open_call(self, slot: _Slot, name: str, out: list[Event]) -> Call:
        """Announces a call once its name is known."""
        self._leave_part(out)
        self._blank, self._blank_logprobs, self._early_citations = "", [], []
        binding = self._turn.plan.tools.bind(name)
        call = start_call(self._turn, binding, self._turn.own_call_id(slot.id))
        call.open(out)
        (self._open if call.index >= 0 else self._late).append(call)
        return call

    # --------------------------------------------------------------------------------------- closing

    def _leave_part(self, out: list[Event]) -> None:
        """The growing part is over. It closes now, or with the calls announced before it, which close first."""
        part, self._part = self._part, None
        if part is not None and self._open[0] is part:
            self._open.pop(0)
            self._close(part, "completed", out)

    def _close(self, part: _Part, status: Status, out: list[Event]) -> None:
        if isinstance(part.item, Message):
            part.closed.append(self._finish_part(part, out))
            part.item.content = list(part.closed)
        else:
            self._finish_reasoning(part.item, part, out)
        part.item.status = status
        conclude(self._turn, part.item, part.index, out)

    def _finish_part(self, part: _Part, out: list[Event]) -> OutputText | Refusal:
        turn, text = self._turn, "".join(part.texts)
        sequence, item_id, index, at = turn.next_sequence(), part.item.id or "", part.index, part.content_index
        done: OutputText | Refusal
        if part.kind == "text":
            done = OutputText(text=text, annotations=part.annotations, logprobs=part.logprobs)
            out.append(
                OutputTextDone(
                    sequence_number=sequence,
                    item_id=item_id,
                    output_index=index,
                    content_index=at,
                    text=text,
                    logprobs=part.logprobs,
                )
            )
        else:
            done = Refusal(text)
            out.append(
                RefusalDone(
                    sequence_number=sequence, item_id=item_id, output_index=index, content_index=at, refusal=text
                )
            )
        out.append(
            ContentPartDone(
                sequence_number=turn.next_sequence(),
                item_id=item_id,
                output_index=index,
                content_index=at,
                response_id=turn.response.id,
                part=done,
            )
        )
        return done

    def _finish_reasoning(self, item: Reasoning, part: _Part, out: list[Event]) -> None:
        turn, text = self._turn, "".join(part.texts)
        item_id, index, done = item.id or "", part.index, ReasoningText(text)
        out.append(
            ReasoningTextDone(
                sequence_number=turn.next_sequence(), item_id=item_id, output_index=index, content_index=0, text=text
            )
        )
        out.append(
            ContentPartDone(
                sequence_number=turn.next_sequence(),
                item_id=item_id,
                output_index=index,
                content_index=0,
                response_id=turn.response.id,
                part=done,
            )
        )
        item.content = [done]
        if turn.plan.seal is not None:
            item.encrypted_content = turn.plan.seal(text)
