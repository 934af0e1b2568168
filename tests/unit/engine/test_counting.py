"""What a request costs beside its texts, and that counting never holds the event loop up."""

from __future__ import annotations

import asyncio
import base64
import struct
import time

import pytest
from msgspec import Raw

from treadle.engine.counting import UNKNOWN_IMAGE, context_tokens, counted, image_tokens, most_tokens, part_tokens
from treadle.models.tokens import Tokens
from treadle.ports import AudioPart, FilePart, ImagePart, ModelCall, ModelFunction, ModelMessage, TextPart


def url(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> str:
    return url("png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x02")


def jpeg(width: int, height: int) -> str:
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return url("jpeg", b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + bytes(14) + frame)


@pytest.mark.parametrize(
    ("picture", "tokens"),
    [
        (png(512, 512), 255),
        (png(1024, 1024), 765),
        (png(2048, 4096), 1105),
        (jpeg(1024, 1024), 765),
        (url("gif", b"GIF89a" + struct.pack("<HH", 100, 100)), 255),
        (png(0, 7), UNKNOWN_IMAGE),
        ("https://pictures.example/one.png", UNKNOWN_IMAGE),
        (url("webp", b"RIFF"), UNKNOWN_IMAGE),
    ],
)
def test_a_picture_costs_by_its_tiles(picture: str, tokens: int) -> None:
    assert image_tokens(picture, None) == image_tokens(picture, "high") == tokens
    assert image_tokens(picture, "low") == 85


def test_files_and_sound_cost_by_their_size() -> None:
    assert part_tokens(FilePart("data:application/pdf;base64," + "A" * 64_000)) == pytest.approx(1000, rel=0.01)
    assert part_tokens(AudioPart("A" * 64_000, "wav")) == 10


async def test_tools_calls_and_marks_around_messages_are_counted() -> None:
    tokens = Tokens()

    def count(text: str) -> int:
        return tokens.count(text, "gpt-4o")

    plain = [ModelMessage("user", "hello world")]
    assert await context_tokens(plain, [], count) == 4 + 3 + 2  # as OpenAI documents for chat completions
    tool = ModelFunction(name="look", parameters=Raw(b'{"type":"object","properties":{"at":{"type":"string"}}}'))
    assert await context_tokens(plain, [tool], count) > 9 + 15
    called = [*plain, ModelMessage("assistant", calls=[ModelCall("call_1", "look", '{"at":"the sky above"}')])]
    assert await context_tokens(called, [], count) > 9 + 4 + 8
    shown = [ModelMessage("user", [TextPart("hello world"), ImagePart(png(512, 512))])]
    assert await context_tokens(shown, [], count) == 9 + 255


async def test_counting_a_long_text_leaves_the_loop_free() -> None:
    tokens = Tokens()
    tokens.load("gpt-4o")
    texts = ["The committee will meet again on Tuesday. " * 100] * 200
    longest, running = 0.0, True

    async def watch() -> None:
        nonlocal longest
        while running:
            start = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - start)

    watching = asyncio.create_task(watch())
    assert await counted(texts, lambda text: tokens.count(text, "gpt-4o")) > 150_000
    running = False
    await watching
    # CPU time of the loop's own thread: what other threads and processes do must not fail this.
    assert longest < 0.02


@pytest.mark.parametrize("text", ["plain words", "会議は火曜日です", "👩‍👩‍👧", "a\x00", ""])
async def test_no_count_is_over_the_bound(text: str) -> None:
    tokens = Tokens()
    messages = [
        ModelMessage("user", text),
        ModelMessage("assistant", text, calls=[ModelCall("call_1", "look", text)]),
        ModelMessage("user", [TextPart(text), ImagePart(png(512, 512))]),
    ]
    functions = [ModelFunction(name="look", description=text)]
    for name in ("gpt-4o", "gpt-4", "never-heard-of"):
        counted_all = await context_tokens(messages, functions, lambda one, name=name: tokens.count(one, name))
        assert counted_all <= most_tokens(messages, functions)
