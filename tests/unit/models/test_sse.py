"""The frame splitter: the protocol's line ends and no others, wherever the network cut."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import UpstreamBadStream
from treadle.models.sse import MAX_EVENT, EventSplitter


def split(*reads: bytes) -> list[bytes]:
    splitter = EventSplitter()
    found = [data for read in reads if read for data in splitter.feed(read)]
    return found + splitter.close()


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\r\n\r\ndata:  b \r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"data: {\ndata: }\n\n", [b"{\n}"]),
        (b": comment\n\n: more\ndata: a\n: within\n\n", [b"a"]),
        (b"event: x\nid: 1\nretry: 2\ndata: a\n\n", [b"a"]),
        (b"data: a\n\n\n\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:\n\ndata: \n\ndata\n\nnonsense\n\n", []),
        (b"data: a", [b"a"]),
        (b"data: a\r", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        ("data: \u2028\u2029\x85\x0c\x0b\x1c\n\n".encode(), ["\u2028\u2029\x85\x0c\x0b\x1c".encode().strip()]),
        (b'{"error": 1}\n', [b'{"error": 1}']),
        (b'data: a\n\n{"error": 1}\n\n', [b"a", b'{"error": 1}']),
        (b"<html>\n\n</html>", []),
        (b"", []),
    ],
)
def test_events_are_told_apart_by_the_rules_of_the_protocol(stream: bytes, expected: list[bytes]) -> None:
    assert split(stream) == expected
    assert split(*(stream[at : at + 1] for at in range(len(stream)))) == expected


PIECES = [
    b"data: ",
    b"data:",
    b"data",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b": c",
    b"{",
    b"}",
    b"x",
    b"\xef\xbb\xbf",
    b"\xc2\x85",
]


@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join), st.lists(st.integers(0, 120), max_size=8))
def test_any_cut_of_any_bytes_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    points = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    assert split(*(stream[start:end] for start, end in pairwise(points))) == split(stream)


@pytest.mark.parametrize("read", [b"x" * 65_536, b"data: x\n" * 8_192, b": x\r\n" * 8_192])
def test_an_event_that_does_not_end_is_refused_in_good_time(read: bytes) -> None:
    splitter, begun = EventSplitter(), perf_counter()
    with pytest.raises(UpstreamBadStream, match="does not end"):
        for _ in range(2 * MAX_EVENT // len(read)):
            splitter.feed(read)
    assert perf_counter() - begun < 20


def test_a_large_event_in_small_reads_is_joined_once() -> None:
    event = b"data: " + b"x" * 8_000_000 + b"\n\n"
    begun = perf_counter()
    assert split(*(event[at : at + 1000] for at in range(0, len(event), 1000))) == [event[6:-2]]
    assert perf_counter() - begun < 5
