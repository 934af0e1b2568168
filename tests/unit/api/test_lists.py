"""Pages, and what of an item is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treadle.api.includes import shown
from treadle.api.paging import item_page
from treadle.errors import InvalidRequest
from treadle.ports import StoredItem

ITEMS = [StoredItem(str(n), "message", json.dumps({"id": str(n)}).encode()) for n in range(5)]


def page(**wanted: Any) -> tuple[list[str], bool]:
    found = item_page(ITEMS, **({"after": None, "before": None, "limit": 20, "order": "asc", "include": ()} | wanted))
    ids = [json.loads(bytes(raw))["id"] for raw in found.data]
    assert (found.first_id, found.last_id) == (ids[0], ids[-1])
    return ids, found.has_more


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ("01234", False)),
        ({"order": "desc"}, ("43210", False)),
        ({"limit": 2}, ("01", True)),
        ({"limit": 5}, ("01234", False)),
        ({"after": "1", "limit": 2}, ("23", True)),
        ({"after": "2"}, ("34", False)),
        ({"after": "2", "order": "desc"}, ("10", False)),
        ({"before": "3"}, ("012", False)),
        ({"before": "3", "limit": 2}, ("01", True)),
        ({"after": "0", "before": "4"}, ("123", False)),
    ],
)
def test_a_page_is_what_lies_between_its_cursors(wanted: dict[str, Any], expected: tuple[str, bool]) -> None:
    assert page(**wanted) == (list(expected[0]), expected[1])


def test_nothing_is_a_page_too() -> None:
    found = item_page([], after=None, before=None, limit=20, order="desc", include=())
    assert (found.data, found.first_id, found.last_id, found.has_more) == ([], "", "", False)


@pytest.mark.parametrize("cursor", ["after", "before"])
def test_an_unknown_cursor_is_named(cursor: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        page(**{cursor: "nobody"})
    assert caught.value.param == cursor


PIXEL = "data:image/png;base64,AAAA"
HIDDEN: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "reasoning.encrypted_content",
        {"type": "reasoning", "id": "rs", "encrypted_content": "x", "summary": []},
        {"type": "reasoning", "id": "rs", "summary": []},
    ),
    (
        "message.output_text.logprobs",
        {"type": "message", "content": [{"type": "output_text", "text": "a", "logprobs": [{"token": "a"}]}]},
        {"type": "message", "content": [{"type": "output_text", "text": "a", "logprobs": []}]},
    ),
    (
        "message.input_image.image_url",
        {"type": "message", "content": [{"type": "input_image", "image_url": PIXEL}]},
        {"type": "message", "content": [{"type": "input_image", "image_url": None}]},
    ),
    (
        "file_search_call.results",
        {"type": "file_search_call", "results": [{"text": "x"}]},
        {"type": "file_search_call", "results": None},
    ),
    (
        "web_search_call.action.sources",
        {"type": "web_search_call", "action": {"type": "search", "sources": [1]}},
        {"type": "web_search_call", "action": {"type": "search"}},
    ),
    (
        "computer_call_output.output.image_url",
        {"type": "computer_call_output", "output": {"image_url": PIXEL}},
        {"type": "computer_call_output", "output": {}},
    ),
]


@pytest.mark.parametrize(("flag", "whole", "without"), HIDDEN, ids=[flag for flag, _, _ in HIDDEN])
def test_a_flag_shows_and_its_absence_hides(flag: str, whole: dict[str, Any], without: dict[str, Any]) -> None:
    item = StoredItem("x", whole["type"], json.dumps(whole, separators=(",", ":")).encode())
    assert json.loads(bytes(shown(item, ()))) == without
    assert (
        json.loads(
            bytes(shown(item, ["reasoning.encrypted_content" if flag[0] != "r" else "file_search_call.results"]))
        )
        == without
    )
    assert bytes(shown(item, [flag])) == item.data


@pytest.mark.parametrize("odd", [{"type": "file_search_call"}, {"type": "web_search_call", "action": "x"}])
def test_a_clients_item_of_another_shape_does_no_harm(odd: dict[str, Any]) -> None:
    item = StoredItem("x", odd["type"], json.dumps(odd).encode())
    assert json.loads(bytes(shown(item, ())))["type"] == odd["type"]


def test_a_picture_that_is_only_named_is_shown() -> None:
    message = {"type": "message", "content": [{"type": "input_image", "image_url": "https://example.test/a.png"}]}
    item = StoredItem("x", "message", json.dumps(message, separators=(",", ":")).encode())
    assert bytes(shown(item, ())) == item.data
