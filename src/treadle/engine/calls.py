"""Calls while they grow: what each kind of call shows of itself from its name to its end.

A call of a tool that the server runs stays open until it was run; its item holds the result. Every other call is
complete with its arguments.
"""

from __future__ import annotations

import re

from msgspec import UNSET, DecodeError, Raw, Struct, structs
from msgspec.json import Decoder

from treadle.engine.citations import cited_files
from treadle.engine.knowledge import FileSearchOutcome, queries_of
from treadle.engine.toolset import Binding
from treadle.engine.turn import Turn
from treadle.ids import new_id
from treadle.ports import ToolOutcome
from treadle.wire.base import encode
from treadle.wire.events import (
    CustomToolCallInputDelta,
    CustomToolCallInputDone,
    Event,
    FileSearchCallCompleted,
    FileSearchCallInProgress,
    FileSearchCallSearching,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    McpCallArgumentsDelta,
    McpCallArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    OutputItemAdded,
    OutputItemDone,
    WebSearchCallCompleted,
    WebSearchCallInProgress,
    WebSearchCallSearching,
)
from treadle.wire.items import (
    CustomToolCall,
    FileSearchCall,
    FileSearchRecord,
    FunctionCall,
    Item,
    McpApprovalRequest,
    McpCall,
    SearchAction,
    Status,
    Told,
    WebSearchCall,
)

BROKEN_ARGUMENTS = "Not run: the arguments are not a JSON object. Call again with valid JSON."


class _CustomInput(Struct):
    input: str


class _SearchArguments(Struct):
    query: str = ""
    url: str = ""
    pattern: str = ""


_custom_input = Decoder(_CustomInput)
_search_arguments = Decoder(_SearchArguments)
_object = Decoder(dict[str, Raw])


class Call:
    """A function call: announced with its name, shown as it grows, done with its arguments."""

    pending = False
    """Stays open until `settle`."""

    @property
    def waits(self) -> bool:
        """Whether the turn ends with this call, because the client has a word in it."""
        return self.binding.owner == "client"

    def __init__(self, turn: Turn, binding: Binding, call_id: str) -> None:
        self._turn = turn
        self.binding = binding
        self.call_id = call_id
        self.index = -1
        self.settled = False
        self.texts: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.texts)

    def open(self, out: list[Event]) -> None:
        self.item = FunctionCall(
            id=item_id(self._turn, "fc"),
            status="in_progress",
            call_id=self.call_id,
            name=self.binding.name,
            arguments="",
            namespace=self.binding.namespace or UNSET,
        )
        self.index = announce(self._turn, self.item, out)

    def grow(self, text: str, out: list[Event]) -> None:
        self.texts.append(text)
        out.append(
            FunctionCallArgumentsDelta(
                sequence_number=self._turn.next_sequence(),
                item_id=self.item.id or "",
                output_index=self.index,
                delta=text,
            )
        )

    def close(self, status: Status, out: list[Event]) -> None:
        """The arguments are whole, or cut off."""
        if not self.arguments.strip() and status == "completed":
            self.grow("{}", out)
        self.item.status = status
        self.item.arguments = self.arguments
        out.append(
            FunctionCallArgumentsDone(
                sequence_number=self._turn.next_sequence(),
                item_id=self.item.id or "",
                output_index=self.index,
                name=self.item.name,
                arguments=self.item.arguments,
            )
        )
        conclude(self._turn, self.item, self.index, out)

    def settle(self, outcome: ToolOutcome, out: list[Event]) -> None:
        """The call was run. Only pending calls show it in their own item."""


class CustomCall(Call):
    """A call of a custom tool. Its text is inside a JSON string that can only be read when it is whole."""

    def open(self, out: list[Event]) -> None:
        self.custom = CustomToolCall(
            id=item_id(self._turn, "ctc"),
            status="in_progress",
            call_id=self.call_id,
            name=self.binding.name,
            input="",
            namespace=self.binding.namespace or UNSET,
        )
        self.index = announce(self._turn, self.custom, out)

    def grow(self, text: str, out: list[Event]) -> None:
        self.texts.append(text)

    def close(self, status: Status, out: list[Event]) -> None:
        item, index, turn = self.custom, self.index, self._turn
        item.status = status
        item.input = text = _custom_text(self.arguments)
        item_id = item.id or ""
        if text:
            number = turn.next_sequence()
            out.append(
                CustomToolCallInputDelta(sequence_number=number, item_id=item_id, output_index=index, delta=text)
            )
        number = turn.next_sequence()
        out.append(CustomToolCallInputDone(sequence_number=number, item_id=item_id, output_index=index, input=text))
        conclude(turn, item, index, out)


class RemoteCall(Call):
    """A call of an MCP tool; `approval` is the request that permitted it."""

    pending = True

    def __init__(self, turn: Turn, binding: Binding, call_id: str, approval: str | None = None) -> None:
        super().__init__(turn, binding, call_id)
        self._approval = approval
        self._whole = False

    def open(self, out: list[Event]) -> None:
        self.remote = McpCall(
            id=item_id(self._turn, "mcp", approved=self._approval is not None),
            server_label=self.binding.label,
            name=self.binding.name,
            arguments="",
            status="in_progress",
            approval_request_id=self._approval,
        )
        self.index = announce(self._turn, self.remote, out)
        out.append(
            McpCallInProgress(
                sequence_number=self._turn.next_sequence(), item_id=self.remote.id or "", output_index=self.index
            )
        )

    def grow(self, text: str, out: list[Event]) -> None:
        self.texts.append(text)
        out.append(
            McpCallArgumentsDelta(
                sequence_number=self._turn.next_sequence(),
                item_id=self.remote.id or "",
                output_index=self.index,
                delta=text,
            )
        )

    def close(self, status: Status, out: list[Event]) -> None:
        if not self.arguments.strip() and status == "completed":
            self.grow("{}", out)
        self._whole = True
        self.remote.arguments = self.arguments
        out.append(
            McpCallArgumentsDone(
                sequence_number=self._turn.next_sequence(),
                item_id=self.remote.id or "",
                output_index=self.index,
                arguments=self.remote.arguments,
            )
        )

    def settle(self, outcome: ToolOutcome, out: list[Event]) -> None:
        if not self._whole:
            self.close("incomplete", out)
        item = self.remote
        item.status = "failed" if outcome.failed else "completed"
        if outcome.failed:
            item.error = outcome.error or execution_error(outcome.text)
        else:
            item.output = outcome.text
        ended = McpCallFailed if outcome.failed else McpCallCompleted
        out.append(ended(sequence_number=self._turn.next_sequence(), item_id=item.id or "", output_index=self.index))
        self._turn.keep_images(item.id or "", outcome.images)
        conclude(self._turn, item, self.index, out)


class ApprovalCall(Call):
    """A call that has to be permitted: shown as a request, when it is whole, and never run in this turn."""

    def open(self, out: list[Event]) -> None:
        """Nothing is shown before the arguments are whole."""

    def grow(self, text: str, out: list[Event]) -> None:
        self.texts.append(text)

    @property
    def waits(self) -> bool:
        return is_object(self.arguments.strip() or "{}")

    def close(self, status: Status, out: list[Event]) -> None:
        if not self.waits:
            # Nobody can judge what is not there: the model is told, as of any call with broken arguments.
            broken = RemoteCall(self._turn, self.binding, self.call_id)
            broken.open(out)
            broken.grow(self.arguments, out)
            broken.settle(ToolOutcome(BROKEN_ARGUMENTS, failed=True), out)
            return
        item = McpApprovalRequest(
            id=new_id("mcpr") + self.binding.digest,
            server_label=self.binding.label,
            name=self.binding.name,
            arguments=self.arguments.strip() or "{}",
        )
        conclude(self._turn, item, announce(self._turn, item, out), out)


class FileCall(Call):
    """A search of vector stores. `first`: the server's own, before it asks the model."""

    pending = True

    def __init__(self, turn: Turn, binding: Binding, call_id: str, *, first: bool = False) -> None:
        super().__init__(turn, binding, call_id)
        self._first = first

    def open(self, out: list[Event]) -> None:
        self.search = FileSearchRecord(id=item_id(self._turn, "fs", approved=self._first), status="in_progress")
        self.index = announce(self._turn, self.search, out)
        out.append(
            FileSearchCallInProgress(
                sequence_number=self._turn.next_sequence(), item_id=self.search.id or "", output_index=self.index
            )
        )

    def grow(self, text: str, out: list[Event]) -> None:
        self.texts.append(text)

    def close(self, status: Status, out: list[Event]) -> None:
        self.search.queries = queries_of(self.arguments)
        out.append(
            FileSearchCallSearching(
                sequence_number=self._turn.next_sequence(), item_id=self.search.id or "", output_index=self.index
            )
        )

    def settle(self, outcome: ToolOutcome, out: list[Event]) -> None:
        item, turn = self.search, self._turn
        item.status = "failed" if outcome.failed else "completed"
        item.told = Told(before=outcome.text)
        if isinstance(outcome, FileSearchOutcome):
            item.results, item.told = outcome.results, outcome.told
        if not outcome.failed:
            number = turn.next_sequence()
            out.append(FileSearchCallCompleted(sequence_number=number, item_id=item.id or "", output_index=self.index))
        turn.cite_from(cited_files(item))
        # The store keeps all of it, for later turns; the client sees what it asked for.
        results = item.results if "file_search_call.results" in turn.plan.include else None
        shown = FileSearchCall(id=item.id, status=item.status, queries=item.queries, results=results)
        conclude(turn, shown, self.index, out)


class SearchCall(Call):
    """A web search, or a page opened."""

    pending = True

    def open(self, out: list[Event]) -> None:
        self.search = WebSearchCall(
            id=item_id(self._turn, "ws"), status="in_progress", action=_action(self.binding.name, "")
        )
        self.index = announce(self._turn, self.search, out)
        out.append(
            WebSearchCallInProgress(
                sequence_number=self._turn.next_sequence(), item_id=self.search.id or "", output_index=self.index
            )
        )

    def grow(self, text: str, out: list[Event]) -> None:
        self.texts.append(text)

    def close(self, status: Status, out: list[Event]) -> None:
        self.search.action = _action(self.binding.name, self.arguments)
        out.append(
            WebSearchCallSearching(
                sequence_number=self._turn.next_sequence(), item_id=self.search.id or "", output_index=self.index
            )
        )

    def settle(self, outcome: ToolOutcome, out: list[Event]) -> None:
        item, turn, include = self.search, self._turn, self._turn.plan.include
        item.status = "failed" if outcome.failed else "completed"
        item.results = outcome.text
        if item.action.type == "search":
            item.action.sources = [
                {"type": Raw(b'"url"'), "url": Raw(encode(source.url))} for source in outcome.sources
            ]
        if not outcome.failed:
            number = turn.next_sequence()
            out.append(WebSearchCallCompleted(sequence_number=number, item_id=item.id or "", output_index=self.index))
        turn.cite_from(outcome.sources)
        # The store keeps all of it, for later turns; the client sees what it asked for.
        action = item.action
        if "web_search_call.action.sources" not in include:
            action = structs.replace(action, sources=UNSET)
        results = item.results if "web_search_call.results" in include else UNSET
        conclude(turn, structs.replace(item, action=action, results=results), self.index, out)


def start_call(turn: Turn, binding: Binding, call_id: str) -> Call:
    """A call of the kind that `binding` stands for."""
    kinds: dict[str, type[Call]] = {
        "function": Call,
        "custom": CustomCall,
        "mcp": ApprovalCall if binding.asks else RemoteCall,
        "web_search": SearchCall,
        "file_search": FileCall,
    }
    return kinds[binding.kind](turn, binding, call_id)


def item_id(turn: Turn, prefix: str, *, approved: bool = False) -> str:
    """An id that ends in the round of its turn, so that a later turn can tell calls made together from calls made one
    after the other. Approved calls, and a search that the server makes first, come before all rounds."""
    return f"{new_id(prefix)}{0 if approved else min(turn.rounds + 1, 255):02x}"


_OF_ROUND = re.compile(r"(?:fc|ctc|mcp|ws|fs)_[0-9a-f]{32}([0-9a-f]{2})")


def round_of(item_id: str | None) -> str | None:
    """The round at the end of a call's id; None if the id is not one of ours."""
    found = _OF_ROUND.fullmatch(item_id or "")
    return found[1] if found else None


def announce(turn: Turn, item: Item, out: list[Event]) -> int:
    """Gives `item` the next output index and says so."""
    index = len(turn.items)
    turn.items.append(item)
    out.append(
        OutputItemAdded(
            sequence_number=turn.next_sequence(),
            response_id=turn.response.id,
            output_index=index,
            item=Raw(encode(item)),
        )
    )
    return index


def conclude(turn: Turn, item: Item, index: int, out: list[Event]) -> None:
    """The item is final: encoded once, for the event, the response and the store."""
    raw = turn.raws[index] = Raw(encode(item))
    number = turn.next_sequence()
    out.append(OutputItemDone(sequence_number=number, response_id=turn.response.id, output_index=index, item=raw))


def is_object(arguments: str) -> bool:
    """Whether `arguments` is a JSON object, the only thing a tool may be run with (bug case 14)."""
    try:
        _object.decode(arguments)
    except (DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def execution_error(text: str) -> dict[str, Raw]:
    """The `error` object of a tool that ran and failed, or was refused by us."""
    content = [{"type": "text", "text": text}]
    return {"type": Raw(b'"mcp_tool_execution_error"'), "content": Raw(encode(content))}


def _action(function: str, arguments: str) -> SearchAction:
    try:
        found = _search_arguments.decode(arguments or "{}")
    except (DecodeError, UnicodeEncodeError, RecursionError):
        found = _SearchArguments()
    match function:
        case "open_page":
            return SearchAction(type="open_page", url=found.url)
        case "find_in_page":
            return SearchAction(type="find_in_page", url=found.url, pattern=found.pattern)
        case _:
            return SearchAction(type="search", query=found.query, queries=[found.query] if found.query else [])


def _custom_text(arguments: str) -> str:
    """The text of a custom call; a weak model that sent bare text instead of `{"input": …}` meant that text."""
    try:
        return _custom_input.decode(arguments).input
    except (DecodeError, UnicodeEncodeError):
        return arguments
