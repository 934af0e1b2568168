"""What a model may see of the past."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from msgspec import Raw

from treadle.access.sealing import KeySealer, load_key
from treadle.engine.history import check_outputs, check_sealed, visible
from treadle.errors import InvalidRequest
from treadle.wire.content import ReasoningText
from treadle.wire.items import FunctionCall, FunctionCallOutput, Item, OpaqueItem, Reasoning

SEALER = KeySealer(b"k" * 32)
MYSTERY = Raw(b"{}")


def sealed(text: str = "Hm.", sealer: KeySealer = SEALER) -> Reasoning:
    return Reasoning(id="rs_1", summary=[], encrypted_content=sealer.seal(text))


def test_sealed_reasoning_is_opened_and_the_item_left_as_it_was() -> None:
    item = sealed()
    (shown,) = visible([item], SEALER.unseal)
    assert isinstance(shown, Reasoning)
    assert shown.content == [ReasoningText("Hm.")]
    assert not item.content


def test_what_others_sealed_is_not_opened() -> None:
    foreign = Reasoning(id="rs_1", summary=[], encrypted_content="gAAAAfromelsewhere")
    check_sealed([(foreign, "input[0]")], SEALER.unseal)
    assert visible([foreign], SEALER.unseal) == [foreign]


@pytest.mark.parametrize("where", [5, 20, -1])
def test_what_was_changed_is_refused_where_it_came_in(where: int) -> None:
    item = sealed()
    assert isinstance(item.encrypted_content, str)
    text = bytearray(item.encrypted_content.encode())
    text[where] = ord("A") if text[where] != ord("A") else ord("Q")
    item.encrypted_content = text.decode()
    with pytest.raises(InvalidRequest) as caught:
        check_sealed([(item, "input[3]")], SEALER.unseal)
    assert (caught.value.code, caught.value.param) == ("invalid_encrypted_content", "input[3].encrypted_content")


def test_a_new_key_does_not_block_what_is_stored() -> None:
    item = sealed(sealer=KeySealer(b"o" * 32))
    assert visible([item], SEALER.unseal) == [item]


def test_items_of_unknown_kinds_are_hidden() -> None:
    item = OpaqueItem("mystery", "item_1", MYSTERY)
    assert visible([item], SEALER.unseal) == []


def test_a_kind_cannot_write_lines_of_its_own_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    visible([OpaqueItem("x\nERROR forged " + "y" * 10_000, "item_1", MYSTERY)], SEALER.unseal)
    (record,) = caplog.records
    assert "\n" not in record.getMessage()
    assert len(record.getMessage()) < 200


def test_an_output_needs_its_call_before_or_beside_it() -> None:
    call = FunctionCall(id="fc_1", call_id="c1", name="look", arguments="{}")
    output = FunctionCallOutput(id="fco_1", call_id="c1", output="x")
    beside: list[tuple[Item, str]] = [(call, "input[0]"), (output, "input[1]")]
    check_outputs([], beside)
    check_outputs([call], [(output, "input[0]")])
    with pytest.raises(InvalidRequest) as caught:
        check_outputs([], [(output, "input[0]")])
    assert caught.value.param == "input[0].call_id"
    assert "'c1'" in caught.value.message


def test_a_key_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    key = load_key("", tmp_path)
    assert load_key("", tmp_path) == key
    assert (tmp_path / "secret.key").stat().st_mode & 0o077 == 0
    assert load_key("a configured secret", tmp_path) not in (key, load_key("another", tmp_path))
