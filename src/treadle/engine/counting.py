"""How many tokens a model is shown: messages, tools, and what pictures and files cost by a documented estimate.

The numbers beside the texts are OpenAI's published ones for chat completions; other servers differ by little.
"""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Callable, Iterable, Sequence

from treadle.ports import AudioPart, FilePart, ImagePart, ModelFunction, ModelMessage, ModelPart, TextPart
from treadle.wire.base import encode

Count = Callable[[str], int]
"""Tokens of a text. Takes 0.1 ms for 1,000 characters."""

PER_MESSAGE = 4
"""The role and the marks around a message."""
PER_ANSWER = 3
"""The beginning of the answer, which is part of what is sent."""
PER_FUNCTION = 4
LOW_IMAGE = 85
TILE = 170
UNKNOWN_IMAGE = 765
"""Of a picture of a square megapixel, where the size is not to be seen: it is somewhere else."""
BYTES_PER_FILE_TOKEN = 48
BYTES_PER_AUDIO_TOKEN = 4_800


def texts_of(messages: Iterable[ModelMessage]) -> list[str]:
    """What is to be counted of messages."""
    found: list[str] = []
    for message in messages:
        if isinstance(message.content, str):
            found.append(message.content)
        else:
            found += [part.text for part in message.content if isinstance(part, TextPart)]
        for call in message.calls:
            found += (call.name, call.arguments)
        found += [text for text in (message.reasoning, message.refusal) if text]
    return [text for text in found if text]


def texts_of_functions(functions: Iterable[ModelFunction]) -> list[str]:
    """Tools are counted as their JSON, which is how most chat templates show them."""
    return [encode(function).decode() for function in functions]


def fixed(messages: Sequence[ModelMessage], functions: Sequence[ModelFunction] = ()) -> int:
    """The tokens that are not text."""
    total = PER_MESSAGE * len(messages) + PER_FUNCTION * len(functions)
    for message in messages:
        total += PER_MESSAGE * len(message.calls)
        if not isinstance(message.content, str):
            total += sum(part_tokens(part) for part in message.content)
    return total


def most_tokens(messages: Sequence[ModelMessage], functions: Sequence[ModelFunction] = ()) -> int:
    """A bound that needs no counting: no encoding makes more tokens than bytes, and no character has more than four."""
    total = PER_ANSWER
    for message in messages:
        content = message.content
        if isinstance(content, str) and not message.calls and message.reasoning is None and message.refusal is None:
            total += PER_MESSAGE + (len(content) if content.isascii() else 4 * len(content))
        else:
            total += fixed([message]) + sum(4 * len(text) for text in texts_of([message]))
    return total + sum(PER_FUNCTION + 4 * len(text) for text in texts_of_functions(functions))


async def counted(texts: Sequence[str], count: Count) -> int:
    """Tokens of all texts together, not on the event loop: the first count loads a vocabulary."""
    return await asyncio.to_thread(lambda: sum(map(count, texts))) if texts else 0


async def context_tokens(messages: Sequence[ModelMessage], functions: Sequence[ModelFunction], count: Count) -> int:
    """All that a request costs before its answer."""
    return (
        fixed(messages, functions)
        + PER_ANSWER
        + await counted(texts_of(messages) + texts_of_functions(functions), count)
    )


def part_tokens(part: ModelPart) -> int:
    """What a part costs beside its text."""
    match part:
        case ImagePart():
            return image_tokens(part.url, part.detail)
        case FilePart():
            return (
                len(part.data) * 3 // 4 // BYTES_PER_FILE_TOKEN if part.data[:5].lower() == "data:" else UNKNOWN_IMAGE
            )
        case AudioPart():
            return len(part.data) * 3 // 4 // BYTES_PER_AUDIO_TOKEN
        case _:
            return 0


def image_tokens(url: str, detail: str | None) -> int:
    """85, and 170 for each tile of 512 pixels that remains once the picture is fitted into 2048 by 2048 and its shorter
    side into 768; `low` is 85 always."""
    if detail == "low":
        return LOW_IMAGE
    size = _size(url)
    if size is None:
        return UNKNOWN_IMAGE
    width, height = size
    scale = min(1.0, 2048 / max(width, height), 768 / min(width, height))
    tiles = -(-int(width * scale) // 512) * -(-int(height * scale) // 512)
    return LOW_IMAGE + TILE * tiles


def _size(url: str) -> tuple[int, int] | None:
    """Width and height of a PNG, GIF or JPEG in a data URL; None for all else."""
    head, comma, data = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        return None
    try:
        start = base64.b64decode(data[:65_536], validate=False)
    except ValueError:
        return None
    size: tuple[int, int] | None = None
    if start[:8] == b"\x89PNG\r\n\x1a\n" and len(start) >= 24:
        size = struct.unpack(">II", start[16:24])
    elif start[:4] == b"GIF8" and len(start) >= 10:
        size = struct.unpack("<HH", start[6:10])
    elif start[:2] == b"\xff\xd8":
        size = _jpeg_size(start)
    return size if size is not None and min(size) > 0 else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int(struct.unpack(">H", data[at + 2 : at + 4])[0])
    return None
