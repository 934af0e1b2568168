"""The `input` of a request as items: decoded, checked, references followed, and each item once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from msgspec import Raw

from treadle.engine.media import NOWHERE_ELSE, Place
from treadle.errors import InvalidRequest, NotFound, ToolFault
from treadle.ids import plausible
from treadle.ports import AddressGuard, Responses
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.content import InputFile, InputImage, InputText, MessagePart, OutputText, PlainText, Refusal
from treadle.wire.items import (
    CallOutput,
    CustomToolCall,
    CustomToolCallOutput,
    FileSearchCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    ItemReference,
    Message,
    OpaqueItem,
    WebSearchCall,
    decode_input,
    decode_stored,
    kind_of,
    renamed,
    tidied,
    usable_id,
)

Given = list[tuple[Item | ItemReference, str]]
"""Items with their paths in the request."""


def decode_inputs(given: str | Sequence[Raw] | None, name: str = "input") -> Given:
    """The items of the request field `name`. InvalidRequest for what is none, or cannot be shown to a model."""
    if given is None:
        return []
    if isinstance(given, str):
        return [(tidied(Message(role="user", content=[InputText(given)])), name)]
    found: Given = []
    for index, raw in enumerate(given):
        at = f"{name}[{index}]"
        for item in decode_input(raw, at):
            _check_parts(item, at)
            found.append((item, at))
    return found


async def resolve(scope: Scope, given: Given, history: list[Item], responses: Responses) -> list[tuple[Item, str]]:
    """The input with references followed, without what the history already holds: each item reaches the model once.

    Clients send items back that we hold already, with and without their ids, and some reuse an id for something else.
    A message that ends the input, or comes twice in it, is meant as it stands (bug case 21). A search that comes back
    without its results, because the client never saw them, is the stored one.
    """
    last = given[-1][0] if given else None
    past = {item.id: item for item in history}
    wanted = [usable_id(item.id) for item, _ in given if isinstance(item, ItemReference)]
    wanted += [item.id for item, _ in given if _is_bare_search(item) and item.id]
    missing = [item_id for item_id in wanted if item_id not in past and plausible(item_id)]
    stored = await responses.find_items(scope, missing) if missing else {}
    replayed = _Replayed(history)
    known: dict[str | None, Item] = dict(past)
    result: list[tuple[Item, str]] = []
    for item, at in given:
        if isinstance(item, ItemReference):
            if (item_id := usable_id(item.id)) in known:
                continue
            if (entry := stored.get(item_id)) is None:
                raise NotFound(f"Item with id '{item.id[:128]}' not found.", param=f"{at}.id")
            item = decode_stored(entry.kind, entry.id, entry.data)
        elif (twin := known.get(item.id)) is not None:
            if _same(twin, item) and not _meant_again(item, twin, item.id in past, item is last):
                continue
            item = renamed(item)
        elif replayed.holds(item):
            continue
        elif _is_bare_search(item) and (entry := stored.get(item.id or "")) and entry.kind == kind_of(item):
            item = decode_stored(entry.kind, entry.id, entry.data)
        known[item.id] = item
        result.append((item, at))
    return result


async def check_addresses(
    inputs: Sequence[tuple[Item, str]], guard: AddressGuard, places: Mapping[Place, str] = NOWHERE_ELSE
) -> None:
    """InvalidRequest for an image or file that is to be fetched from an address callers may not name (bug case 74),
    or from a host that is not to be found.

    The model server does the fetching, from inside the operator's network. `places` are the paths of parts that stand
    elsewhere in the request than their items.
    """
    for item, at in inputs:
        field, parts = _parts_of(item)
        for index, part in enumerate(parts):
            name = "image_url" if isinstance(part, InputImage) else "file_url"
            url = getattr(part, name, None) if isinstance(part, InputImage | InputFile) else None
            if not isinstance(url, str) or url[:5].lower() == "data:":
                continue
            where = f"{places.get((item.id or '', index)) or f'{at}.{field}[{index}]'}.{name}"
            guard.check_url(url, where)
            split = urlsplit(url)
            try:
                await guard.resolve(split.hostname or "", split.port or (443 if split.scheme == "https" else 80))
            except ToolFault as fault:
                raise InvalidRequest(fault.message, param=where) from None


def _parts_of(item: Item) -> tuple[str, Sequence[MessagePart]]:
    if isinstance(item, Message):
        return "content", item.content if not isinstance(item.content, str) else ()
    if isinstance(item, CallOutput):
        return "output", item.output if not isinstance(item.output, str) else ()
    return "", ()


def _is_bare_search(item: Item | ItemReference) -> bool:
    return isinstance(item, WebSearchCall | FileSearchCall) and not item.results


def _meant_again(item: Item, twin: Item, is_past: bool, is_last: bool) -> bool:
    """Whether an item that seems to be `twin` is one more."""
    if isinstance(item, OpaqueItem) and isinstance(twin, OpaqueItem):
        return not is_past and bytes(item.raw) != bytes(twin.raw)
    return isinstance(item, Message) and (is_last or not is_past)


class _Replayed:
    """The calls of a history and their outputs, to recognise those that come again without their ids."""

    def __init__(self, history: list[Item]) -> None:
        self._calls = {_call_key(item) for item in history if isinstance(item, FunctionCall | CustomToolCall)}
        self._made = Counter(item.call_id for item in history if isinstance(item, FunctionCall | CustomToolCall))
        self._outputs: defaultdict[str, list[CallOutput]] = defaultdict(list)
        self._contents: dict[str, set[str | bytes]] = {}
        for item in history:
            if isinstance(item, CallOutput):
                self._outputs[item.call_id].append(item)

    def holds(self, item: Item) -> bool:
        if isinstance(item, FunctionCall | CustomToolCall):
            return _call_key(item) in self._calls
        if isinstance(item, CallOutput):
            outputs = self._outputs.get(item.call_id, [])
            # Models that number their calls anew each turn reuse ids: then the output is for a later call.
            if not len(outputs) >= self._made[item.call_id] > 0:
                return False
            if item.call_id not in self._contents:
                self._contents[item.call_id] = {_content(output) for output in outputs}
            return _content(item) in self._contents[item.call_id]
        return False


def _content(output: CallOutput) -> str | bytes:
    return output.output if isinstance(output.output, str) else encode(output.output)


def _call_key(call: FunctionCall | CustomToolCall) -> tuple[str, str, str, str]:
    return kind_of(call), call.call_id, call.name, call.arguments if isinstance(call, FunctionCall) else call.input


def _same(one: Item, other: Item) -> bool:
    """Whether two items are one, however a client has trimmed it in between."""
    if kind_of(one) != kind_of(other):
        return False
    match one, other:
        case Message(), Message():
            return one.role == other.role and _text(one) == _text(other)
        case FunctionCall(), FunctionCall():
            return (one.call_id, one.name, one.arguments) == (other.call_id, other.name, other.arguments)
        case CustomToolCall(), CustomToolCall():
            return (one.call_id, one.name, one.input) == (other.call_id, other.name, other.input)
        case FunctionCallOutput() | CustomToolCallOutput(), FunctionCallOutput() | CustomToolCallOutput():
            return one.call_id == other.call_id
        case _:
            return True


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = [part.text for part in message.content if isinstance(part, InputText | PlainText | OutputText)]
    return "\n".join(texts + [part.refusal for part in message.content if isinstance(part, Refusal)])


def _check_parts(item: Item | ItemReference, at: str) -> None:
    if isinstance(item, Message):
        parts, field = item.content, "content"
    elif isinstance(item, CallOutput):
        parts, field = item.output, "output"
    else:
        return
    for index, part in enumerate(parts):
        check_part(part, f"{at}.{field}[{index}]")


def check_part(part: MessagePart | str, where: str) -> None:
    """InvalidRequest for an image or file that is not there."""
    missing = ""
    if isinstance(part, InputImage) and not (part.image_url or part.file_id):
        missing = f"{where}.image_url"
    elif isinstance(part, InputFile) and not (part.file_data or part.file_url or part.file_id):
        missing = f"{where}.file_data"
    if missing:
        raise InvalidRequest(
            f"Missing required parameter: '{missing}'.", param=missing, code="missing_required_parameter"
        )
