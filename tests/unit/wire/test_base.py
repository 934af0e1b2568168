"""What a caller is told when a body does not fit: code, path and words."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.errors import InvalidRequest
from treadle.wire.base import decode
from treadle.wire.responses import CreateResponse

DECODER = msgspec.json.Decoder(CreateResponse)

FAULTS: list[tuple[bytes, str | None, str, str]] = [
    (
        b'{"temperature": 3}',
        "temperature",
        "decimal_above_max_value",
        "Invalid value for 'temperature': expected number <= 2.0.",
    ),
    (b'{"max_tool_calls": 0}', "max_tool_calls", "integer_below_min_value", "expected integer >= 1"),
    (b'{"stream": "x"}', "stream", "invalid_type", "expected boolean or null, got string"),
    (b'{"include": ["x"]}', "include[0]", "invalid_value", "invalid enum value 'x'"),
    (b'{"conversation": {}}', "conversation.id", "missing_required_parameter", "Missing required parameter"),
    (b'{"metadata": {"a": 5}}', "metadata", "invalid_type", "expected string, got integer"),
    (
        b'{"metadata": {"%b": "a"}}' % (b"k" * 65),
        "metadata",
        "string_above_max_length",
        "expected string of length <= 64",
    ),
    (b'{"text": {"format": {"name": "a b"}}}', "text.format.name", "invalid_value", "letters, digits"),
    (b"", None, "invalid_json", "The body is empty"),
    (b"  ", None, "invalid_json", "The body is empty"),
    (b"{", None, "invalid_json", "it ends too early"),
    (b'{"a":1,}', None, "invalid_json", "trailing comma"),
    (b"[]", None, "invalid_type", "expected object, got array"),
]


@pytest.mark.parametrize(("body", "param", "code", "words"), FAULTS)
def test_a_fault_is_named_in_plain_words(body: bytes, param: str | None, code: str, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(DECODER, body)
    fault = caught.value
    assert (fault.param, fault.code) == (param, code)
    assert words in fault.message
    assert not any(mark in fault.message for mark in ("`", "$", "msgspec", "int,", "JSON is malformed"))


def test_the_path_starts_where_the_part_stands() -> None:
    part: msgspec.json.Decoder[list[int]] = msgspec.json.Decoder(list[int])
    with pytest.raises(InvalidRequest) as caught:
        decode(part, b'[1, "x"]', "tools[3].sizes")
    assert caught.value.param == "tools[3].sizes[1]"


BROKEN: list[tuple[bytes, str | None, str]] = [
    (b'{"input": "\\ud800"}', "input", "surrogate"),
    (b'{"input": [{"content": ["ok", "\\udfff"]}]}', "input[0].content[1]", "surrogate"),
    (b'{"metadata": {"a": "x", "b": "\\ud83d"}}', "metadata.b", "surrogate"),
    (b'{"\\ud83d": 1}', None, "surrogate"),
]


@pytest.mark.parametrize(("body", "param", "words"), BROKEN)
def test_a_text_that_is_none_is_named_by_its_path(body: bytes, param: str | None, words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(DECODER, body)
    assert (caught.value.param, caught.value.code) == (param, "invalid_json")
    assert words in caught.value.message


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from([field.encode_name for field in msgspec.structs.fields(CreateResponse)])


def fault_of(body: bytes) -> InvalidRequest | None:
    try:
        decode(DECODER, body)
    except InvalidRequest as fault:
        return fault
    return None


@given(st.dictionaries(fields, json_values, max_size=5))
def test_any_json_is_a_request_or_a_named_fault(body: dict[str, Any]) -> None:
    fault = fault_of(json.dumps(body).encode())
    assert fault is None or (fault.status == 400 and fault.message)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_as_such(body: bytes) -> None:
    fault = fault_of(body)
    assert fault is None or fault.code in ("invalid_json", "invalid_type")
