"""Model chunks in, items and events out: a synchronous state machine, one per model call.

No await, no validation, no growing strings on the way of a delta: parts are collected and joined when an item closes.
Items open in increasing output index; those still open at the end of the call close in that order (contract §7.2).
"""

from __future__ import annotations

from msgspec import UNSET, DecodeError, Raw, Struct, field
from msgspec.json import Decoder

from treadle.engine.toolset import Binding
from treadle.engine.turn import Turn
from treadle.errors import UpstreamBadStream
from treadle.ids import new_id
from treadle.ports import CallFragment, FinishReason, ModelChunk, ModelUsage, TokenLogprob
from treadle.wire.base import encode
from treadle.wire.content import OutputText, ReasoningText, Refusal
from treadle.wire.events import (
    ContentPartAdded,
    ContentPartDone,
    CustomToolCallInputDelta,
    CustomToolCallInputDone,
    Event,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    RefusalDelta,
    RefusalDone,
)
from treadle.wire.items import CustomToolCall, FunctionCall, Item, Message, Reasoning, Status


class ModelCallMade(Struct):
    """A finished call of this round and what its name means."""

    item: FunctionCall | CustomToolCall
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
    closed: list[OutputText | Refusal] = field(default_factory=list)


class _Call(Struct):
    """A call that is still growing; it is announced, and gets its index, once its name is known."""

    index: int = -1
    call_id: str | None = None
    binding: Binding | None = None
    item: FunctionCall | CustomToolCall | None = None
    texts: list[str] = field(default_factory=list)


class _CustomInput(Struct):
    input: str


_custom_input = Decoder(_CustomInput)
_object = Decoder(dict[str, Raw])


class Assembler:
    """Folds the chunks of one model call into the turn. `feed` any number of times, then `finish` or `abort`."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._part: _Part | None = None
        self._calls: dict[int, _Call] = {}
        self._open: list[_Part | _Call] = []
        self._blank = ""
        self._blank_logprobs: list[TokenLogprob] = []
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
        return any(call.binding is not None for call in self._calls.values())

    def finish(self, status: Status, out: list[Event]) -> list[ModelCallMade]:
        """Closes what is open and returns the calls. `status` is what the item cut off at the end gets.

        Raises UpstreamBadStream for a call that never got a name; one without arguments as well is no call.
        """
        if any(call.binding is None and call.texts for call in self._calls.values()):
            raise UpstreamBadStream("The model server sent a tool call without a name.")
        if self._blank and not self.called and self._part is None:
            self._open_message("text", out)
            self._append_text("", None, out)
        made: list[ModelCallMade] = []
        while self._open:
            entry = self._open.pop(0)
            if isinstance(entry, _Call):
                whole = status == "completed" or (bool(self._open) and is_object("".join(entry.texts)))
                made.append(self._close_call(entry, "completed" if whole else status, out))
            else:
                self._close(entry, status if entry is self._part and not self._open else "completed", out)
        return made

    def abort(self, out: list[Event]) -> None:
        """Closes what is open as incomplete."""
        while self._open:
            entry = self._open.pop(0)
            if isinstance(entry, _Call):
                self._close_call(entry, "incomplete", out)
            else:
                self._close(entry, "incomplete", out)

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

    def _append_text(self, text: str, logprobs: list[TokenLogprob] | None, out: list[Event]) -> None:
        part = self._part
        assert part is not None
        if self._blank:
            text, self._blank = self._blank + text, ""
            logprobs, self._blank_logprobs = [*self._blank_logprobs, *(logprobs or ())], []
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
            part.kind, part.texts, part.logprobs = kind, [], []
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
        call = self._calls.get(fragment.slot)
        if call is None:
            call = self._calls[fragment.slot] = _Call()
        if fragment.id and call.call_id is None:
            call.call_id = fragment.id
        if fragment.name and call.binding is None:
            self._open_call(call, fragment.name, out)
        if fragment.arguments:
            call.texts.append(fragment.arguments)
            self._call_delta(call, fragment.arguments, out)

    def _open_call(self, call: _Call, name: str, out: list[Event]) -> None:
        """Announces a call once its name is known; arguments that came before the name follow at once."""
        self._leave_part(out)
        self._blank, self._blank_logprobs = "", []
        binding = call.binding = self._turn.plan.tools.bind(name)
        call.call_id = self._turn.own_call_id(call.call_id)
        namespace = binding.namespace or UNSET
        if binding.custom:
            call.item = CustomToolCall(
                id=new_id("ctc"),
                status="in_progress",
                call_id=call.call_id,
                name=binding.name,
                input="",
                namespace=namespace,
            )
        else:
            call.item = FunctionCall(
                id=new_id("fc"),
                status="in_progress",
                call_id=call.call_id,
                name=binding.name,
                arguments="",
                namespace=namespace,
            )
        call.index = announce(self._turn, call.item, out)
        self._open.append(call)
        if early := "".join(call.texts):
            self._call_delta(call, early, out)

    def _call_delta(self, call: _Call, text: str, out: list[Event]) -> None:
        # A custom tool's text is inside a JSON string that can only be read when it is whole.
        if isinstance(call.item, FunctionCall):
            out.append(
                FunctionCallArgumentsDelta(
                    sequence_number=self._turn.next_sequence(),
                    item_id=call.item.id or "",
                    output_index=call.index,
                    delta=text,
                )
            )

    def _close_call(self, call: _Call, status: Status, out: list[Event]) -> ModelCallMade:
        item, binding, turn = call.item, call.binding, self._turn
        assert item is not None
        assert binding is not None
        arguments = "".join(call.texts)
        item.status = status
        if isinstance(item, FunctionCall):
            if not arguments.strip() and status == "completed":
                self._call_delta(call, "{}", out)
                arguments += "{}"
            item.arguments = arguments
            out.append(
                FunctionCallArgumentsDone(
                    sequence_number=turn.next_sequence(),
                    item_id=item.id or "",
                    output_index=call.index,
                    name=item.name,
                    arguments=arguments,
                )
            )
        else:
            item.input = _custom_text(arguments)
            item_id, index, text = item.id or "", call.index, item.input
            if text:
                number = turn.next_sequence()
                out.append(
                    CustomToolCallInputDelta(sequence_number=number, item_id=item_id, output_index=index, delta=text)
                )
            number = turn.next_sequence()
            out.append(CustomToolCallInputDone(sequence_number=number, item_id=item_id, output_index=index, input=text))
        conclude(turn, item, call.index, out)
        return ModelCallMade(item, binding, arguments)

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
            done = OutputText(text=text, logprobs=part.logprobs)
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


def announce(turn: Turn, item: Item, out: list[Event]) -> int:
    """Gives `item` the next output index and says so."""
    index = len(turn.items)
    turn.items.append(item)
    out.append(OutputItemAdded(sequence_number=turn.next_sequence(), output_index=index, item=Raw(encode(item))))
    return index


def conclude(turn: Turn, item: Item, index: int, out: list[Event]) -> None:
    """The item is final: encoded once, for the event, the response and the store."""
    raw = turn.raws[index] = Raw(encode(item))
    out.append(OutputItemDone(sequence_number=turn.next_sequence(), output_index=index, item=raw))


def is_object(arguments: str) -> bool:
    """Whether `arguments` is a JSON object, the only thing a tool may be run with (bug case 14)."""
    try:
        _object.decode(arguments)
    except (DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _custom_text(arguments: str) -> str:
    """The text of a custom call; a weak model that sent bare text instead of `{"input": …}` meant that text."""
    try:
        return _custom_input.decode(arguments).input
    except (DecodeError, UnicodeEncodeError):
        return arguments
