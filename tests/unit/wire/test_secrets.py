"""Credentials are left out of what is shown and stored, wherever a client writes them, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from treadle.wire.items import ItemReference, decode_input, encode_item
from treadle.wire.tools import decode_choice, decode_tool, echo_tool


def raw(value: Any) -> Raw:
    return Raw(value.encode() if isinstance(value, str) else json.dumps(value).encode())


PLACES: list[Any] = [
    {"Authorization": "s3cret"},
    {"HEADERS": {"x": "s3cret"}},
    {"extra_headers": {"x": "s3cret"}},
    {"Proxy-Authorization": "s3cret"},
    {"environment": {"network_policy": {"domain_secrets": [{"name": "n", "value": "s3cret"}]}}},
    {"servers": [{"deep": {"headers": {"x": "s3cret"}}}]},
    {"Server_URL": "https://s3cret@host/p?k=s3cret"},
    {"properties": {"x": {"headers": "s3cret"}}},
]


@pytest.mark.parametrize("more", PLACES, ids=json.dumps)
@pytest.mark.parametrize("kind", ["mcp", "shell", "code_interpreter"])
def test_a_hosted_tool_is_echoed_without_credentials(kind: str, more: Any) -> None:
    declared = raw({"type": kind, "server_label": "x"} | more)
    tool = decode_tool(declared, "tools[0]", frozenset())
    shown = bytes(echo_tool(tool))
    assert b"s3cret" not in shown
    assert json.loads(shown).items() >= {"type": kind, "server_label": "x"}.items()
    assert b"s3cret" in bytes(getattr(tool, "raw", b""))


def test_a_key_that_comes_twice_hides_no_credentials() -> None:
    declared = raw('{"type": "shell", "x": {"headers": {"k": "s3cret"}}, "x": 1}')
    assert json.loads(bytes(echo_tool(decode_tool(declared, "tools[0]", frozenset())))) == {"type": "shell", "x": 1}


def test_names_that_a_schema_describes_stay() -> None:
    schema = {"type": "object", "properties": {"headers": {"type": "object"}, "properties": {"type": "string"}}}
    declared = {"type": "tool_search", "parameters": schema}
    assert json.loads(bytes(echo_tool(decode_tool(raw(declared), "tools[0]", frozenset())))) == declared


def test_a_clients_own_tools_are_echoed_whole() -> None:
    schema = {"type": "object", "properties": {"authorization": {"type": "string"}}, "headers": {"x": 1}}
    function = {"type": "function", "name": "f", "description": None, "parameters": schema, "strict": None}
    assert json.loads(bytes(echo_tool(decode_tool(raw(function), "tools[0]", frozenset())))) == function
    custom = {"type": "custom", "name": "f", "format": {"type": "text", "headers": 1}}
    assert json.loads(bytes(echo_tool(decode_tool(raw(custom), "tools[0]", frozenset())))) == custom
    group = {"type": "namespace", "name": "n", "description": None, "tools": [function, custom]}
    assert json.loads(bytes(echo_tool(decode_tool(raw(group), "tools[0]", frozenset())))) == group


@pytest.mark.parametrize("choice", [{"type": "mcp", "server_label": "x"}, {"type": "allowed_tools", "tools": []}])
def test_a_tool_choice_is_echoed_without_credentials(choice: dict[str, Any]) -> None:
    entry = {"type": "mcp", "server_label": "x", "Authorization": "s3cret"}
    given = choice | ({"tools": [entry]} if "tools" in choice else entry)
    assert b"s3cret" not in bytes(decode_choice(raw(given)).echo)


@pytest.mark.parametrize("more", PLACES, ids=json.dumps)
@pytest.mark.parametrize("kind", ["mcp_call", "mcp_list_tools", "mcp_new"])
def test_an_item_of_an_mcp_server_is_stored_without_credentials(kind: str, more: Any) -> None:
    (item,) = decode_input(raw({"type": kind, "id": "mcp_1", "server_label": "x"} | more), "input[0]")
    assert not isinstance(item, ItemReference)
    stored = encode_item(item)
    assert b"s3cret" not in stored
    assert json.loads(stored).items() >= {"type": kind, "id": "mcp_1", "server_label": "x"}.items()


def test_an_item_that_is_not_of_an_mcp_server_is_stored_whole() -> None:
    given = {"type": "mystery", "id": "item_1", "headers": {"x": "y"}}
    (item,) = decode_input(raw(given), "input[0]")
    assert not isinstance(item, ItemReference)
    assert json.loads(encode_item(item)) == given
