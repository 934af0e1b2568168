"""The tokens of a batch: what the answers say of theirs, added up."""

from __future__ import annotations

import msgspec

from treadle.wire.batches import BatchUsage


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Reasoned(msgspec.Struct):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """The tokens of an answer, by the names of responses or of completions."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens_details: _Cached | None = None
    output_tokens_details: _Reasoned | None = None
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Reasoned | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


class _Answer(msgspec.Struct):
    body: _Body


class _Told(msgspec.Struct):
    response: _Answer | None = None


_told = msgspec.json.Decoder(_Told)


class UsageSum:
    """Adds up what answers say of their tokens."""

    def __init__(self) -> None:
        self.total = BatchUsage()
        self.any = False

    def add(self, line: bytes) -> None:
        try:
            told = _told.decode(line)
        except msgspec.ValidationError:  # another server's idea of usage
            return
        if told.response is None or (usage := told.response.body.usage) is None:
            return
        self.any = True
        given, made = (
            usage.input_tokens or usage.prompt_tokens or 0,
            usage.output_tokens or usage.completion_tokens or 0,
        )
        self.total.input_tokens += given
        self.total.output_tokens += made
        self.total.total_tokens += given + made
        cached = usage.input_tokens_details or usage.prompt_tokens_details
        thought = usage.output_tokens_details or usage.completion_tokens_details
        self.total.input_tokens_details.cached_tokens += (cached and cached.cached_tokens) or 0
        self.total.output_tokens_details.reasoning_tokens += (thought and thought.reasoning_tokens) or 0
