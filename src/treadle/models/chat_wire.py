"""The chat-completions dialect as bytes: requests out, chunks in. Shapes and conversion only, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Raw

from treadle.errors import UpstreamBadStream, UpstreamFault
from treadle.models.repair import CallSlots, SurrogateMender
from treadle.models.thinking import Piece, ThinkSplitter
from treadle.models.upstream import fault_in_stream
from treadle.ports import (
    AudioPart,
    Capabilities,
    FilePart,
    FinishReason,
    ImagePart,
    ModelChunk,
    ModelFunction,
    ModelMessage,
    ModelPart,
    ModelRequest,
    ModelUsage,
    OutputFormat,
    TextPart,
    TokenAlternative,
    TokenLogprob,
)

Body = dict[str, object]

_PLAIN = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "reasoning_effort", "verbosity")
_PASSED = ("service_tier", "prompt_cache_key", "safety_identifier", "parallel_tool_calls")

_encode = msgspec.json.Encoder().encode


def encode_request(
    request: ModelRequest,
    can: Capabilities,
    *,
    max_tokens_field: str,
    drops: frozenset[str],
    extra: Mapping[str, object],
) -> bytes:
    """The body of a streamed chat completion. What the caller did not set, or the vendor refuses, is not in it."""
    body: Body = {"model": request.model, "messages": [_message(m, can) for m in request.messages], "stream": True}
    if "stream_options" not in drops:
        body["stream_options"] = {"include_usage": True}
    for name in (*_PLAIN, *_PASSED):
        value = getattr(request, name)
        if value is not None and name not in drops:
            body[name] = value
    if request.max_output_tokens is not None:
        body[max_tokens_field] = request.max_output_tokens
    if request.logprobs and "logprobs" not in drops:
        body["logprobs"] = True
        if request.top_logprobs:
            body["top_logprobs"] = request.top_logprobs
    if request.functions:
        body["tools"] = [_function(f, with_strict="strict" not in drops) for f in request.functions]
        if request.tool_choice is not None:
            body["tool_choice"] = _choice(request.tool_choice)
    if request.output_format is not None:
        body["response_format"] = _format(request.output_format)
    return _encode(body | dict(request.extra_body) | dict(extra))


def _message(message: ModelMessage, can: Capabilities) -> Body:
    content = message.content
    found: Body = {
        "role": message.role,
        "content": content if isinstance(content, str) else [_part(part) for part in content],
    }
    if message.role == "tool":
        found["tool_call_id"] = message.call_id
    if message.calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    if message.refusal:
        found["refusal"] = message.refusal
    if message.reasoning and can.reasoning_back:
        found[can.reasoning_back] = message.reasoning
    return found


def _part(part: ModelPart) -> Body:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case ImagePart(url, detail):
            return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}
        case FilePart(data, filename):
            return {"type": "file", "file": {"file_data": data} | ({"filename": filename} if filename else {})}
        case AudioPart(data, kind):
            return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}


def _function(function: ModelFunction, *, with_strict: bool) -> Body:
    found: Body = {"name": function.name}
    if function.description is not None:
        found["description"] = function.description
    if function.parameters is not None:
        found["parameters"] = function.parameters
    if function.strict is not None and with_strict:
        found["strict"] = function.strict
    return {"type": "function", "function": found}


def _choice(choice: str) -> object:
    if choice.startswith("function:"):
        return {"type": "function", "function": {"name": choice.removeprefix("function:")}}
    return choice


def _format(wanted: OutputFormat) -> Body:
    if wanted.kind == "json_object":
        return {"type": "json_object"}
    schema: Body = {"name": wanted.name, "schema": wanted.schema}
    if wanted.strict is not None:
        schema["strict"] = wanted.strict
    if wanted.description is not None:
        schema["description"] = wanted.description
    return {"type": "json_schema", "json_schema": schema}


# ------------------------------------------------------------------------------------------------ chunks

_Count = float | int | None
_MOST_TOKENS = 2**40
_NULL = Raw(b"null")
_NO_ERROR = (b"null", b'""', b"false")


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | dict[str, Raw] | None = None


class _ToolCall(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Thought(msgspec.Struct):
    type: str = ""
    text: str = ""


class _ContentPart(msgspec.Struct):
    """Mistral's content list: text, or `thinking` with texts inside."""

    type: str = ""
    text: str = ""
    thinking: str | list[_Thought] = ""


class _Delta(msgspec.Struct):
    content: str | list[_ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Alternative(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _Logprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[_Alternative] | None = None


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Choice(msgspec.Struct):
    index: int | None = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None
    logprobs: Raw = _NULL
    """Read only when they were asked for: what nobody wants may have any shape."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count = None
    cache_write_tokens: _Count = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: _Count = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count = None
    completion_tokens: _Count = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: _Count = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Raw = _NULL
    """Read on its own: an answer is not lost because its count is odd."""
    service_tier: str | None = None
    error: Raw = _NULL


class _Kind(msgspec.Struct):
    """What an event without choices is; vLLM's errors once had no envelope."""

    object: str = ""


_chunk = msgspec.json.Decoder(_Chunk, strict=False)
_kind = msgspec.json.Decoder(_Kind)
_usage_of = msgspec.json.Decoder(_Usage | None, strict=False)
_logprobs_of = msgspec.json.Decoder(_Logprobs | None, strict=False)

_FINISH: dict[str, FinishReason] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
_BROKEN = frozenset(
    {
        "error",
        "abort",
        "cancelled",
        "timeout",
        "insufficient_system_resource",
        "function_call_filter",
        "malformed_function_call",
    }
)


class ChunkReader:
    """Turns the data of chat-completion events into model chunks; holds what spans several of them."""

    def __init__(self, *, hold_thinking: bool, logprobs: bool = False, secrets: Iterable[str] = ()) -> None:
        """`logprobs`: they were asked for. `secrets` never show in an error."""
        self._slots = CallSlots()
        self._thinking: ThinkSplitter | None = ThinkSplitter(hold=hold_thinking)
        self._mender: SurrogateMender | None = None
        self._wants_logprobs = logprobs
        self._logprobs: list[TokenLogprob] = []
        """Of text that the splitter has not let go of yet."""
        self._thought = False
        self._secrets = secrets
        self.begun = False
        """A choice came."""
        self.done = False
        """`[DONE]` came."""
        self.finished = False
        """A finish reason came."""

    @property
    def learned_lone_close(self) -> bool:
        return self._thinking is not None and self._thinking.lone_close

    def read(self, data: bytes, out: list[ModelChunk]) -> None:
        """Raises the fault that the server reports inside its answer, and UpstreamBadStream for what is no chunk."""
        if data == b"[DONE]":
            self.done = True
            return
        chunk = self._decode(data)
        if chunk.error is not _NULL and bytes(chunk.error) not in _NO_ERROR:
            raise fault_in_stream(data, self._secrets)
        if chunk.choices is None and _is_error(data):
            raise fault_in_stream(data, self._secrets)
        for choice in chunk.choices or ():
            if not choice.index:
                self._choice(choice, out)
        if chunk.usage is not _NULL and (usage := _usage(chunk.usage)):
            out.append(ModelChunk(usage=usage))
        if chunk.service_tier is not None:
            out.append(ModelChunk(service_tier=chunk.service_tier))

    def finish(self, out: list[ModelChunk]) -> None:
        """What is still held back at the end of the stream, or before a call."""
        if self._thinking is not None:
            self._pieces(self._thinking.finish(), out)

    def _decode(self, data: bytes) -> _Chunk:
        try:
            return _chunk.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            reason = error
        if b"\\u" in data:
            self._mender = self._mender or SurrogateMender()
            try:
                return _chunk.decode(self._mender.mend(data))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                reason = error
        raise UpstreamBadStream(f"The model server sent a chunk that cannot be read: {reason}.")

    def _choice(self, choice: _Choice, out: list[ModelChunk]) -> None:
        self.begun = True
        delta = choice.delta or choice.message
        if delta is not None:
            if thought := delta.reasoning_content or delta.reasoning:
                # The server separates reasoning itself, so a tag in the text is only text.
                self._stop_splitting(out)
                out.append(ModelChunk(reasoning=thought))
            if delta.content:
                if self._wants_logprobs and choice.logprobs is not _NULL:
                    self._logprobs += _logprobs(choice.logprobs)
                self._content(delta.content, out)
            if delta.refusal:
                self.finish(out)
                out.append(ModelChunk(refusal=delta.refusal))
            if delta.tool_calls:
                self._calls(delta.tool_calls, out)
        if choice.finish_reason:
            reason = choice.finish_reason.lower().partition(":")[0]
            if reason in _BROKEN:
                raise UpstreamFault(f"The model server broke off: {reason}.")
            self.finished = True
            self.finish(out)
            out.append(ModelChunk(finish=_FINISH.get(reason, "stop")))

    def _content(self, content: str | list[_ContentPart], out: list[ModelChunk]) -> None:
        if isinstance(content, list):
            for part in content:
                if part.type == "thinking":
                    self._stop_splitting(out)
                    thought = (
                        part.thinking if isinstance(part.thinking, str) else "".join(t.text for t in part.thinking)
                    )
                    out.append(ModelChunk(reasoning=thought))
                elif part.text:
                    self._pieces([("text", part.text)], out)
        elif self._thinking is None and not self._logprobs:
            out.append(ModelChunk(text=content))
        elif self._thinking is None:
            self._pieces([("text", content)], out)
        else:
            self._pieces(self._thinking.feed(content), out)

    def _pieces(self, pieces: list[Piece], out: list[ModelChunk]) -> None:
        for kind, text in pieces:
            if kind == "reasoning":
                self._thought = True
                out.append(ModelChunk(reasoning=text))
                continue
            logprobs, self._logprobs = self._logprobs, []
            if self._thought:
                # What came before belongs to the reasoning and its tags.
                logprobs, self._thought = _last_tokens(logprobs, text), False
            out.append(ModelChunk(text=text, logprobs=logprobs or None))

    def _stop_splitting(self, out: list[ModelChunk]) -> None:
        if self._thinking is not None:
            self.finish(out)
            self._thinking = None

    def _calls(self, calls: list[_ToolCall], out: list[ModelChunk]) -> None:
        self.finish(out)  # text that was held back came before the call
        self._slots.next_delta()
        for call in calls:
            function = call.function or _Function()
            arguments = function.arguments
            if isinstance(arguments, dict):
                arguments = _encode(arguments).decode()
            out.append(ModelChunk(call=self._slots.place(call.index, call.id, function.name, arguments or "")))


def _is_error(data: bytes) -> bool:
    try:
        return _kind.decode(data).object == "error"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _last_tokens(logprobs: list[TokenLogprob], text: str) -> list[TokenLogprob]:
    """The entries at the end of `logprobs` whose tokens make up `text`."""
    missing, start = len(text.encode("utf-8", "replace")), len(logprobs)
    while missing > 0 and start:
        start -= 1
        missing -= len(logprobs[start].bytes or ())
    return logprobs[start:]


def _usage(given: Raw) -> ModelUsage | None:
    """The counts, or None when they cannot be read as such."""
    try:
        usage = _usage_of.decode(given)
        return _counts(usage) if usage else None
    except (ValueError, OverflowError, RecursionError):  # no shape of ours, NaN, an infinity
        return None


def _counts(usage: _Usage) -> ModelUsage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    return ModelUsage(
        input_tokens=_count(usage.prompt_tokens),
        output_tokens=_count(usage.completion_tokens),
        cached_tokens=_count(prompt.cached_tokens if prompt else None) or _count(usage.prompt_cache_hit_tokens),
        cache_write_tokens=_count(prompt.cache_write_tokens if prompt else None),
        reasoning_tokens=_count(completion.reasoning_tokens if completion else None),
    )


def _count(given: float | None) -> int:
    """A number of tokens, whatever the server wrote: whole, not negative, and of a size that can be added up."""
    return 0 if given is None else max(0, min(int(given), _MOST_TOKENS))


def _logprobs(given: Raw) -> list[TokenLogprob]:
    """What can be read of log probabilities; an answer is not lost because they are odd."""
    try:
        found = _logprobs_of.decode(given)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [
        TokenLogprob(
            token=entry.token,
            logprob=entry.logprob,
            bytes=entry.bytes or list(entry.token.encode()),
            top_logprobs=[
                TokenAlternative(a.token, a.logprob, a.bytes or list(a.token.encode()))
                for a in entry.top_logprobs or ()
            ],
        )
        for entry in (found.content if found else None) or ()
    ]
