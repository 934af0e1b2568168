"""The bound on nesting: exact where it matters, blind to brackets inside texts, and quick whatever comes."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.http.depth import MAX_DEPTH, too_deep


def nested(depth: int, opened: bytes, closed: bytes) -> bytes:
    return opened * depth + b"1" + closed * depth


@pytest.mark.parametrize(
    ("opened", "closed"), [(b"[", b"]"), (b'{"a":', b"}"), (b'["]}",', b"]"), (b'[{"\\"":', b"}]")]
)
def test_the_bound_is_exact(opened: bytes, closed: bytes) -> None:
    levels = 2 if opened.startswith(b"[{") else 1
    assert not too_deep(nested(MAX_DEPTH // levels, opened, closed))
    assert too_deep(nested(MAX_DEPTH // levels + 1, opened, closed))


def test_brackets_inside_texts_do_not_count() -> None:
    for text in ("[" * 5000, '"[' * 5000, "\\[{" * 5000, "]" * 5000):
        assert not too_deep(json.dumps({"input": text, "more": [{"x": text}] * 300}).encode())


def test_wide_bodies_are_not_deep() -> None:
    assert not too_deep(json.dumps([[[{"a": []}] * 10] * 10] * 100).encode())


@pytest.mark.parametrize(
    "body",
    [b"[" * 5_000_000, b"[]" * 2_500_000, b'"\\"' * 1_500_000, b'\\"' * 2_500_000, b'["' + b'\\"' * 2_500_000,
     nested(200, b"[", b"]") * 12_000],
    ids=["open", "pairs", "open texts", "escapes", "escapes in a text", "many deep ones"],
)  # fmt: skip
def test_hostile_bodies_take_no_longer_than_their_size_warrants(body: bytes) -> None:
    start = time.process_time()
    too_deep(body)
    assert time.process_time() - start < 5


values = st.recursive(
    st.text(st.sampled_from('[]{}"\\a'), max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('[]{}"\\'), max_size=2), inner),
    max_leaves=40,
)


@given(values, st.integers(MAX_DEPTH - 3, MAX_DEPTH + 3))
def test_it_agrees_with_counting(value: object, extra: int) -> None:
    def depth(found: object) -> int:
        if isinstance(found, dict):
            return 1 + max(map(depth, found.values()), default=0)
        if isinstance(found, list):
            return 1 + max(map(depth, found), default=0)
        return 0

    body = b"[" * extra + json.dumps(value).encode() + b"]" * extra
    assert too_deep(body) == (extra + depth(value) > MAX_DEPTH)
