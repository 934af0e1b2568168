"""Frames are read strictly: each break of the framing rules is named."""

from __future__ import annotations

import pytest

from treadle.testing.frames import SequenceError, parse_sse

GOOD = b'event: a\ndata: {"type":"a","n":1}\n\n: ping\n\nevent: b\ndata: {"type":"b"}\n\ndata: [DONE]\n\n'


def test_a_good_stream_gives_its_events_without_comments() -> None:
    assert parse_sse(GOOD) == [{"type": "a", "n": 1}, {"type": "b"}]


def test_a_data_only_stream_is_read_as_such() -> None:
    raw = b'data: {"object":"chat.completion.chunk"}\n\ndata: [DONE]\n\n'
    assert parse_sse(raw, named=False) == [{"object": "chat.completion.chunk"}]
    with pytest.raises(SequenceError, match="event line None differs"):
        parse_sse(raw)
    with pytest.raises(SequenceError, match="an event line on a data-only stream"):
        parse_sse(GOOD, named=False)


def test_a_cut_stream_is_read_up_to_its_last_whole_frame_when_said_so() -> None:
    assert parse_sse(GOOD[:50], complete=False) == [{"type": "a", "n": 1}]
    with pytest.raises(SequenceError) as caught:
        parse_sse(GOOD[:50])
    assert len(caught.value.violations) == 2


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'event: a\ndata: {"type":"b"}\n\ndata: [DONE]\n\n', r"event line \['a'\] differs from type 'b'"),
        (b'event: a\ndata: {"type":"a"}\n\n', "does not end with"),
        (GOOD + b'event: a\ndata: {"type":"a"}\n\n', "comes after"),
        (GOOD + b"data: [DONE]\n\n", "comes after"),
        (b'id: 1\nevent: a\ndata: {"type":"a"}\n\ndata: [DONE]\n\n', "unexpected line 'id: 1'"),
        (b': x\nevent: a\ndata: {"type":"a"}\n\ndata: [DONE]\n\n', "unexpected line ': x'"),
        (b'event: a\ndata: {"type":\ndata: "a"}\n\ndata: [DONE]\n\n', "2 data lines"),
        (b"event: a\n\ndata: [DONE]\n\n", "0 data lines"),
        (b'event: a\r\ndata: {"type":"a"}\n\ndata: [DONE]\n\n', "carriage return"),
        (b'event: a\ndata:{"type":"a"}\n\ndata: [DONE]\n\n', "unexpected line"),
        (b"event: a\ndata: {oops\n\ndata: [DONE]\n\n", "not JSON"),
        (b"event: a\ndata: [1]\n\ndata: [DONE]\n\n", "not an object"),
        (b'event: a\ndata: {"type":"a\xff"}\n\ndata: [DONE]\n\n', "not UTF-8"),
        ('event: a\ndata: {"type":"a","t":"\u2028"}\n\ndata: [DONE]\n\n'.encode(), r"unescaped U\+2028"),
        ('event: a\ndata: {"type":"a","t":"\x85"}\n\ndata: [DONE]\n\n'.encode(), r"unescaped U\+0085"),
        (GOOD + b"data", "ends inside a frame"),
    ],
)
def test_a_break_of_the_framing_is_named(raw: bytes, expected: str) -> None:
    with pytest.raises(SequenceError, match=expected):
        parse_sse(raw)
