"""Input items: loose in, one full shape out, and the same again after storing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from treadle.errors import InvalidRequest
from treadle.ids import plausible
from treadle.wire.items import (
    Item,
    ItemReference,
    OpaqueItem,
    decode_input,
    decode_stored,
    encode_item,
    kind_of,
    usable_id,
)


def read(value: Any) -> list[Item | ItemReference]:
    return decode_input(Raw(json.dumps(value).encode()), "input[0]")


def one(value: Any) -> Item:
    (found,) = read(value)
    assert not isinstance(found, ItemReference)
    return found


ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "x", "phase": None},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "phase": "final_answer"},
    {"role": "user", "content": [{"type": "input_image", "image_url": "http://x/y"}, {"type": "text", "text": "t"}]},
    {"role": "user", "content": [{"type": "input_file", "file_data": "eA==", "filename": "f"}]},
    {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}", "namespace": None},
    {"type": "function_call", "call_id": "c", "name": "n", "arguments": "", "namespace": "s"},
    {"type": "function_call_output", "call_id": "c", "output": ""},
    {"type": "function_call_output", "call_id": "c", "output": [{"type": "text", "text": "t"}]},
    {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "c", "output": "x", "status": None},
    {"type": "reasoning", "summary": None, "content": None, "encrypted_content": None, "status": None},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
    {"type": "mcp_call", "name": "n", "arguments": "{}", "server_label": "s"},
    {"type": "nobody knows", "x": [1, 2.5, None, {"y": "é"}]},
]


@pytest.mark.parametrize("value", ITEMS, ids=[json.dumps(item)[:60] for item in ITEMS])
def test_an_item_is_the_same_after_storing_it(value: dict[str, Any]) -> None:
    item = one(value)
    data = encode_item(item)
    fields = json.loads(data)
    assert fields["type"] == kind_of(item)
    assert plausible(fields["id"])
    again = decode_stored(kind_of(item), fields["id"], data)
    assert encode_item(again) == data
    if kind_of(item) in ("message", "function_call", "function_call_output"):
        assert fields["status"] == "completed"
    for name in ("namespace", "phase", "encrypted_content"):
        assert fields.get(name, "set") is not None


def test_an_item_without_a_type_is_a_message_or_a_reference() -> None:
    assert kind_of(one({"role": "developer", "content": "x"})) == "message"
    (reference,) = read({"id": "msg_1"})
    assert isinstance(reference, ItemReference)
    with pytest.raises(InvalidRequest) as caught:
        read({"call_id": "c", "output": "x"})
    assert caught.value.param == "input[0].type"


def test_embedded_calls_leave_their_message() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}
    found = read({"role": "assistant", "content": [{"type": "output_text", "text": "a"}, call, call]})
    assert [kind_of(item) for item in found if not isinstance(item, ItemReference)] == [
        "message",
        "function_call",
        "function_call",
    ]
    assert [type(item).__name__ for item in read({"role": "assistant", "content": [call]})] == ["FunctionCall"]


@pytest.mark.parametrize("given", ["a/b", "x" * 129, "\x00", "é", "a b", "a\n"])
def test_an_id_that_cannot_be_used_becomes_one_that_can_and_stays_it(given: str) -> None:
    assert plausible(usable_id(given))
    assert usable_id(given) == usable_id(given) != usable_id(given + "x")
    for kind in ("message", "mystery"):
        item = one({"type": kind, "id": given, "role": "user", "content": "x"})
        assert item.id == usable_id(given)
        assert isinstance(item, OpaqueItem) == (kind == "mystery")
        assert json.loads(encode_item(item))["id"] == usable_id(given)


def test_a_usable_id_is_kept() -> None:
    assert one({"role": "user", "content": "x", "id": "msg_A-1.b:c"}).id == "msg_A-1.b:c"
