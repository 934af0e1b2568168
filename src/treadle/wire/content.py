"""The parts that messages, tool outputs and reasoning items are made of."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from treadle.wire.base import Text
from treadle.wire.logprobs import TokenLogprob

Url = Annotated[str, Meta(max_length=33_554_432)]
"""A URL or a data URL; the limit is OpenAI's for inline files."""


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: Text


class PlainText(msgspec.Struct, tag_field="type", tag="text"):
    """The chat-completions spelling of a text part, which some clients send; normalised to `input_text`."""

    text: Text


class InputImage(msgspec.Struct, tag_field="type", tag="input_image", kw_only=True):
    detail: Literal["auto", "low", "high", "original"] | None = "auto"
    image_url: Url | None = None
    file_id: str | None = None


class InputFile(msgspec.Struct, tag_field="type", tag="input_file", kw_only=True, omit_defaults=True):
    file_id: str | None = None
    file_url: Url | None = None
    file_data: Url | None = None
    filename: str | None = None


class AudioData(msgspec.Struct):
    data: Url
    format: str


class InputAudio(msgspec.Struct, tag_field="type", tag="input_audio"):
    input_audio: AudioData


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", kw_only=True):
    """Model text. `annotations` is always on the wire; `logprobs` is never null (contract §6.3)."""

    text: Text
    annotations: list[Raw] = []
    logprobs: list[TokenLogprob] | UnsetType | None = []


class Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: Text


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text"):
    text: Text


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: Text


InputPart = InputText | InputImage | InputFile | InputAudio
MessagePart = InputText | PlainText | InputImage | InputFile | InputAudio | OutputText | Refusal
ContentPart = OutputText | Refusal | ReasoningText
"""What `response.content_part.*` events carry."""


def tidy(part: MessagePart) -> MessagePart:
    """The part as we store and show it: no `text` spelling, no null `logprobs`."""
    if isinstance(part, PlainText):
        return InputText(part.text)
    if isinstance(part, OutputText) and part.logprobs is None:
        part.logprobs = UNSET
    return part
