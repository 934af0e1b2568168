"""Items to model messages: synchronous and total.

The rendered history is append-only, so a turn never changes bytes before its own input. A call and its output always
stand together, as model servers demand: outputs follow the message that made the calls, wherever the client put them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, Struct

from treadle.engine.calls import is_object, round_of
from treadle.engine.media import GONE, NO_FILE, NO_IMAGE, Place
from treadle.engine.notes import Summary
from treadle.engine.telling import fitted
from treadle.engine.toolset import ToolSet, clean_name
from treadle.engine.untrusted import wrapped
from treadle.ports import (
    AudioPart,
    Capabilities,
    FilePart,
    ImagePart,
    ModelCall,
    ModelMessage,
    ModelPart,
    TextPart,
)
from treadle.wire.base import encode
from treadle.wire.content import (
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    MessagePart,
    OutputText,
    PlainText,
    Refusal,
)
from treadle.wire.items import (
    CallOutput,
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FileSearchCall,
    FileSearchRecord,
    FunctionCall,
    FunctionCallOutput,
    McpApprovalRequest,
    McpApprovalResponse,
    McpCall,
    McpListTools,
    Message,
    Reasoning,
    Told,
    TypedItem,
    WebSearchCall,
)

ACCORDING = "According to the text above: "
"""Before the question of a model that cannot call tools. Even a very small one then answers from the passages."""
NO_OUTPUT = "(This call was not answered.)"
NO_RESULTS = "(What this found is not known any more.)"
"""Of a search of ours that was not stored, and that the client brings back without its results."""


def render(
    items: Sequence[TypedItem],
    tools: ToolSet,
    capabilities: Capabilities,
    instructions: str | None = None,
    images: Mapping[str, list[ImagePart]] | None = None,
    attached: Mapping[Place, ModelPart] | None = None,
) -> list[ModelMessage]:
    """The messages for a model: instructions once and first, then the items in order.

    `images` are pictures that tools of this turn gave, by item; `attached` is what stands for parts that refer to
    something.
    """
    drawing = _Drawing(items, tools, capabilities, images or {}, attached or {})
    if instructions:
        drawing.messages.append(ModelMessage(_system_role(capabilities), instructions))
    for index, item in enumerate(items):
        drawing.add(item, index)
    drawing.flush()
    return drawing.messages if capabilities.system_anywhere else _system_first(drawing.messages)


class _ErrorPart(Struct):
    text: str = ""


_error_parts = msgspec.json.Decoder(list[_ErrorPart])
_string = msgspec.json.Decoder(str)


class _Drawing:
    """The messages so far and the assistant message that is still collecting text, reasoning and calls."""

    def __init__(
        self,
        items: Sequence[TypedItem],
        tools: ToolSet,
        capabilities: Capabilities,
        images: Mapping[str, list[ImagePart]],
        attached: Mapping[Place, ModelPart],
    ) -> None:
        self.messages: list[ModelMessage] = []
        self._tools = tools
        self._can = capabilities
        self._assistant: ModelMessage | None = None
        self._answers = _paired(items)
        self._owed: list[tuple[str, list[ModelPart]]] = []
        """The outputs of the open assistant message's calls, in call order: text, and attachments."""
        self._ran = False
        """The open message has a call whose item holds its output."""
        self._round: str | None = None
        """Of the calls in the open message."""
        self._images = images
        self._attached = attached
        self._verdicts = {item.approval_request_id: item for item in items if isinstance(item, McpApprovalResponse)}
        self._run = {item.approval_request_id for item in items if isinstance(item, McpCall)}
        self._last_search = max((n for n, item in enumerate(items) if isinstance(item, FileSearchRecord)), default=-1)
        self._turn_start = max((n for n, item in enumerate(items) if _is_user(item)), default=-1)

    def add(self, item: TypedItem, index: int) -> None:
        match item:
            case Message(role="assistant"):
                self._say(item)
            case Message():
                self.flush()
                self.messages.append(self._message(item))
            case Reasoning():
                if self._can.reasoning_back and index > self._turn_start:
                    self._speaker(new=self._answered()).reasoning = _thoughts(item)
            case FunctionCall():
                arguments = item.arguments if is_object(item.arguments) else _quoted(item.arguments)
                self._call(item, arguments, index)
            case CustomToolCall():
                self._call(item, encode({"input": item.input}).decode(), index)
            case McpCall():
                self._remote(item)
            case McpApprovalRequest():
                if item.id not in self._run:
                    verdict = self._verdicts.get(item.id or "")
                    seen = self._remote_name(item.server_label, item.name)
                    self._hosted(item.id or "", seen, item.arguments, _verdict_text(verdict))
            case WebSearchCall():
                self._searched(item)
            case FileSearchCall():
                self._file_search(item, index)
            case Summary():
                self.flush()
                self.messages.append(ModelMessage("user", item.shown))
            case McpListTools() | Compaction():
                pass
            case FunctionCallOutput() | CustomToolCallOutput() | McpApprovalResponse():
                # Rendered with its call. An unanswered call and its late answer still become one exchange.
                self.flush()

    def flush(self) -> None:
        """Ends the assistant message, with the outputs of its calls right behind it."""
        message, self._assistant = self._assistant, None
        owed, self._owed, self._ran = self._owed, [], False
        self._round = None
        if message is None:
            return
        self.messages.append(message)
        images: list[ModelPart] = []
        for call, (text, attached) in zip(message.calls, owed, strict=True):
            images += attached
            self.messages.append(ModelMessage("tool", text, call_id=call.id))
        if images:
            # Tool messages carry text only on nearly all servers, so pictures follow as the user's.
            self.messages.append(ModelMessage("user", images))

    def _answered(self) -> bool:
        return self._assistant is not None and bool(self._assistant.content)

    def _speaker(self, *, new: bool = False) -> ModelMessage:
        if new:
            self.flush()
        if self._assistant is None:
            self._assistant = ModelMessage("assistant", "", calls=[])
        return self._assistant

    def _say(self, item: Message) -> None:
        """Text after a call belongs to the call's message; text after text is a message of its own."""
        open_message = self._assistant
        apart = open_message is not None and bool(open_message.content) and not open_message.calls
        # Behind a call that holds its own output, text is the answer to that output.
        speaker = self._speaker(new=apart or self._ran)
        for part in item.content:
            if isinstance(part, OutputText | InputText | PlainText):
                speaker.content = f"{speaker.content}{part.text}"
            elif isinstance(part, Refusal):
                speaker.refusal = (speaker.refusal or "") + part.refusal

    def _call(self, item: FunctionCall | CustomToolCall, arguments: str, index: int) -> None:
        namespace = item.namespace if isinstance(item.namespace, str) else None
        name = self._tools.seen_name(item.name, namespace)
        self._enter(item.id)
        self._speaker().calls.append(ModelCall(item.call_id, name, arguments))
        output = self._answers.get(index)
        attached: list[ModelPart] = []
        text = NO_OUTPUT if output is None else self._output_text(output, attached)
        if output is not None:
            self._attach(output.id, attached)
        self._owed.append((text, attached))

    def _hosted(self, item_id: str, seen: str, arguments: str, text: str) -> None:
        """A call whose item holds its own output."""
        arguments = arguments if is_object(arguments) else _quoted(arguments)
        self._enter(item_id)
        self._speaker().calls.append(ModelCall(item_id[:64], seen, arguments))
        self._ran = True
        attached: list[ModelPart] = []
        self._attach(item_id, attached)
        if item_id in self._images and not attached:
            text += f"\n{NO_IMAGE}"
        self._owed.append((text, attached))

    def _enter(self, item_id: str | None) -> None:
        """A call of another round than those in the open message was made with their outputs known."""
        made = round_of(item_id)
        if made is not None and self._round not in (None, made) and self._assistant is not None:
            self.flush()
        self._round = made or self._round

    def _remote(self, item: McpCall) -> None:
        binding = self._tools.remote_binding(item.server_label, item.name)
        text = item.output if item.output is not None else _error_text(item)
        # A server that is not declared any more is not trusted for it.
        if binding is None or binding.untrusted:
            text = wrapped(text, item.id or "")
        self._hosted(item.id or "", self._remote_name(item.server_label, item.name), item.arguments, text)

    def _remote_name(self, label: str, name: str) -> str:
        binding = self._tools.remote_binding(label, name)
        return binding.seen if binding is not None else clean_name(name)

    def _searched(self, item: WebSearchCall) -> None:
        action = item.action
        given = {"query": action.query, "url": action.url, "pattern": action.pattern}
        arguments = encode({key: value for key, value in given.items() if isinstance(value, str)}).decode()
        name = "web_search" if action.type == "search" else action.type
        if not isinstance(item.results, str) and round_of(item.id) is None:
            return  # another server's search
        text = wrapped(item.results, item.id or "") if isinstance(item.results, str) else NO_RESULTS
        self._hosted(item.id or "", self._tools.hosted_name("web_search", name), arguments, text)

    def _file_search(self, item: FileSearchCall, index: int) -> None:
        told = item.told if isinstance(item, FileSearchRecord) else UNSET
        if not isinstance(told, Told):
            if round_of(item.id) is None:
                return  # another server's search
            told = Told(before=NO_RESULTS)
        passages = wrapped(fitted(told.passages, self._can), item.id or "") if told.passages else ""
        text = "\n".join(part for part in (told.before, passages, told.behind) if part)
        if self._can.tools:
            given = {"query": item.queries[0]} if len(item.queries) == 1 else {"queries": item.queries}
            name = self._tools.hosted_name("file_search", "file_search")
            self._hosted(item.id or "", name, encode(given).decode(), text)
        elif index == self._last_search:
            # Such a model has little room, and every turn searches anew: it sees the last search only.
            self._before_question(f"{text}\n\n{ACCORDING}" if passages else f"{text}\n\n")

    def _before_question(self, text: str) -> None:
        """Puts text before the user's last message, for models that have no place for results of tools."""
        self.flush()
        asked = next((message for message in reversed(self.messages) if message.role == "user"), None)
        if asked is None:
            self.messages.append(ModelMessage("user", text.strip()))
        elif isinstance(asked.content, str):
            asked.content = text + asked.content
        else:
            asked.content = [TextPart(text), *asked.content]

    def _attach(self, item_id: str | None, attached: list[ModelPart]) -> None:
        if self._can.images:
            attached.extend(self._images.get(item_id or "", ()))

    def _message(self, item: Message) -> ModelMessage:
        role = item.role if item.role == "user" else _system_role(self._can)
        assert not isinstance(item.content, str)
        return ModelMessage(role, _joined(self._parts(item.id, item.content)))

    def _parts(self, item_id: str | None, parts: Sequence[MessagePart]) -> list[ModelPart]:
        return [self._attached.get((item_id or "", index)) or self._part(part) for index, part in enumerate(parts)]

    def _part(self, part: MessagePart) -> ModelPart:
        match part:
            case InputImage():
                if not self._can.images:
                    return TextPart(NO_IMAGE)
                return ImagePart(part.image_url, part.detail) if part.image_url else TextPart(GONE)
            case InputFile():
                if not self._can.files:
                    return TextPart(NO_FILE)
                data = part.file_data or part.file_url
                return FilePart(data, part.filename) if data else TextPart(GONE)
            case InputAudio():
                return AudioPart(part.input_audio.data, part.input_audio.format)
            case Refusal():
                return TextPart(part.refusal)
            case _:
                return TextPart(part.text)

    def _output_text(self, output: CallOutput, images: list[ModelPart]) -> str:
        if isinstance(output.output, str):
            return output.output
        texts: list[str] = []
        for part in self._parts(output.id, output.output):
            if isinstance(part, TextPart):
                texts.append(part.text)
            else:
                texts.append("[An attachment of this output follows in the next message.]")
                images.append(part)
        return "\n".join(texts)


def _error_text(item: McpCall) -> str:
    """What the model is told of a call that failed."""
    error = item.error
    if isinstance(error, str):
        return f"The tool failed: {error}"
    if not error:
        return NO_OUTPUT
    if "content" in error:
        return "The tool failed: " + "\n".join(part.text for part in _error_parts.decode(error["content"]))
    return "The tool failed: " + _string.decode(error.get("message", Raw(b'""')))


def _verdict_text(verdict: McpApprovalResponse | None) -> str:
    if verdict is None:
        return "(The user has not approved this call, so it was not run.)"
    if verdict.approve:
        return "(The user approved this call, but it was not run.)"
    return f"The user did not approve this call. {verdict.reason or ''}".strip()


def _is_user(item: TypedItem) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _paired(items: Sequence[TypedItem]) -> dict[int, CallOutput]:
    """The output of each call, by the call's index.

    Models that number their calls anew each turn use an id more than once: an output belongs to the latest call
    before it that has none, and one that comes before its call to that call.
    """
    paired: dict[int, CallOutput] = {}
    waiting: dict[str, list[int]] = {}
    early: dict[str, CallOutput] = {}
    for index, item in enumerate(items):
        if isinstance(item, FunctionCall | CustomToolCall):
            if (output := early.pop(item.call_id, None)) is not None:
                paired[index] = output
            else:
                waiting.setdefault(item.call_id, []).append(index)
        elif isinstance(item, FunctionCallOutput | CustomToolCallOutput):
            if calls := waiting.get(item.call_id):
                paired[calls.pop()] = item
            elif item.call_id not in waiting:
                early.setdefault(item.call_id, item)
    return paired


def _system_role(capabilities: Capabilities) -> Literal["developer", "system"]:
    return "developer" if capabilities.developer_role else "system"


def _joined(parts: list[ModelPart]) -> str | list[ModelPart]:
    """Plain text where all is text: older chat templates know nothing else."""
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _thoughts(item: Reasoning) -> str | None:
    if not item.content:
        return None
    return "".join(part.text for part in item.content) or None


def _quoted(arguments: str) -> str:
    """Broken arguments as a JSON object: servers refuse a history that holds anything else (bug case 14)."""
    return encode({"invalid_arguments": arguments}).decode()


def _system_first(messages: list[ModelMessage]) -> list[ModelMessage]:
    """All system messages as one leading message, nothing dropped (bug case 20)."""
    system = [message for message in messages if message.role in ("system", "developer")]
    if not system or (len(system) == 1 and messages[0] is system[0]):
        return messages
    texts = [m.content if isinstance(m.content, str) else _as_text(m.content) for m in system]
    merged = ModelMessage(system[0].role, "\n\n".join(texts))
    return [merged, *(message for message in messages if message.role not in ("system", "developer"))]


def _as_text(parts: list[ModelPart]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))
