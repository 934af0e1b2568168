"""Windows of output: nothing flagged leaves, wherever a stream is cut, and nothing else is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.backends.moderation_rules import RuleModerator
from treadle.engine.guard import Blocked, Check, Guard, Guarding
from treadle.ports import CallFragment, ModelChunk, TokenLogprob

WORDS = ["mandrake", "dark art", "x-1"]
TEXT = "We walk along. The mandrake is a plant; the dark art is none, nor is x-1 here. "


def guard(first: int = 20, largest: int = 80) -> Guard:
    check = Check(RuleModerator(words=WORDS))
    return Guard(Guarding(checks=[check], message="No.", first_window=first, largest_window=largest))


async def through(judge: Guard, chunks: Sequence[ModelChunk], together: int = 1) -> tuple[list[list[ModelChunk]], bool]:
    """What passed, batch by batch, and whether it was blocked."""

    async def stream() -> AsyncGenerator[list[ModelChunk], None]:
        for start in range(0, len(chunks), together):
            yield list(chunks[start : start + together])

    passed = []
    try:
        async for batch in judge.filtered(stream()):
            passed.append(batch)
    except Blocked:
        return passed, True
    return passed, False


def cut(text: str, places: Sequence[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False) if text[start:end]]


def said(passed: Sequence[Sequence[ModelChunk]]) -> str:
    return "".join(chunk.text + chunk.reasoning + chunk.refusal for batch in passed for chunk in batch)


@given(
    before=st.text(alphabet="ab .,\n", max_size=200),
    word=st.sampled_from(["mandrake", "Mandrake", "DARK ART", "dark  art", "x-1"]),
    after=st.text(alphabet="ab .,\n", max_size=60),
    places=st.lists(st.integers(0, 400), max_size=40),
    kind=st.sampled_from(["text", "reasoning", "refusal"]),
    logprobs=st.booleans(),
    together=st.integers(1, 5),
    first=st.integers(1, 60),
)
def test_no_flagged_word_leaves_wherever_the_stream_is_cut(
    before: str,
    word: str,
    after: str,
    places: list[int],
    kind: str,
    logprobs: bool,
    together: int,
    first: int,
) -> None:
    text = f"{before} {word} {after}"
    chunks = [ModelChunk(**{kind: piece}) for piece in cut(text, places)]  # type: ignore[arg-type]
    for chunk in chunks:
        chunk.logprobs = [TokenLogprob(token="t", logprob=-1.0)] if logprobs and kind == "text" else None
    passed, blocked = asyncio.run(through(guard(first), chunks, together))
    assert blocked
    seen = said(passed)
    assert text.startswith(seen)
    assert len(seen) < len(before) + 1 + len(word), "the last of its letters left"
    if " " not in word:
        assert len(seen) <= len(before) + 1, "a part of the word left"


@pytest.mark.parametrize("at", range(1, len(TEXT)))
def test_every_place_to_cut_in_two(at: int) -> None:
    passed, blocked = asyncio.run(through(guard(), [ModelChunk(text=TEXT[:at]), ModelChunk(text=TEXT[at:])]))
    assert blocked
    assert "mandrake" not in said(passed)


@given(text=st.text(max_size=300), places=st.lists(st.integers(0, 300), max_size=30), first=st.integers(1, 50))
def test_what_is_not_flagged_comes_through_whole_and_in_order(text: str, places: list[int], first: int) -> None:
    text = text.replace("x-1", "")
    chunks = [ModelChunk(text=piece) for piece in cut(text, places)]
    passed, blocked = asyncio.run(through(guard(first), [*chunks, ModelChunk(finish="stop")]))
    assert not blocked
    assert said(passed) == text
    assert passed[-1][-1].finish == "stop"


async def test_windows_grow_up_to_the_largest() -> None:
    sizes = []
    for batch in (await through(guard(20, 80), [ModelChunk(text="ab ") for _ in range(200)]))[0]:
        sizes.append(len(said([batch])))
    assert sizes[:4] == [21, 42, 81, 81]


async def test_a_call_waits_for_its_whole_arguments_and_what_came_before_it_does_not() -> None:
    def call(arguments: str) -> ModelChunk:
        name = "look" if arguments.startswith("{") else None
        return ModelChunk(call=CallFragment(slot=0, id="c", name=name, arguments=arguments))

    chunks = [ModelChunk(text="I look it up first, wait. "), call('{"q": "man'), call('drake"}')]
    passed, blocked = await through(guard(), chunks)
    assert blocked
    assert said(passed) == "I look it up first, wait. "
    assert all(chunk.call is None for batch in passed for chunk in batch)
    passed, blocked = await through(guard(), [chunks[0], call("{}"), ModelChunk(text="Then more of it, and more. ")])
    assert not blocked
    assert [bool(chunk.call) for batch in passed for chunk in batch] == [False, True, False]


async def test_a_word_without_an_end_does_not_stop_the_stream() -> None:
    passed, blocked = await through(guard(), [ModelChunk(text="x" * 30) for _ in range(100)])
    assert not blocked
    assert len(passed) > 10
    assert said(passed) == "x" * 3000
