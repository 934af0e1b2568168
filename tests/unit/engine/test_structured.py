"""Held answers against the caller's schema: checked without a fetch, a freeze or a fault, whatever the schema is."""

from __future__ import annotations

import json
import socket
from time import monotonic
from typing import Any

import pytest
from msgspec import Raw

from treadle.engine.structured import HeldText
from treadle.ports import ModelChunk, OutputFormat


def fits(answer: Any, schema: Any) -> bool:
    held = HeldText()
    held.filter([ModelChunk(text=answer if isinstance(answer, str) else json.dumps(answer))])
    text = schema if isinstance(schema, bytes) else json.dumps(schema).encode()
    return held.fits(OutputFormat("json_schema", name="n", schema=Raw(text)))


CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 5}},
}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [({"city": "Rome"}, True), ({"city": "London"}, False), ({}, False), ({"city": "Rome", "x": 1}, False)],
)
def test_an_answer_fits_when_it_obeys_the_schema(answer: Any, expected: bool) -> None:
    assert fits(answer, CITY) is expected


@pytest.mark.parametrize("text", ["", "Rome", '{"city": "Ro', "[" * 50_000])
def test_what_is_not_json_never_fits(text: str) -> None:
    assert not fits(text, {"$ref": "#/nowhere"})


def test_a_schema_elsewhere_is_not_fetched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        place = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
        listener.setblocking(False)
        # Whoever fetched it would wait for an answer that never comes, so a time limit guards the test.
        before, limit = socket.getdefaulttimeout(), 2.0
        socket.setdefaulttimeout(limit)
        try:
            assert fits({"city": 1}, {"$ref": place})
        finally:
            socket.setdefaulttimeout(before)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/none"},
        {"$ref": "#"},
        {"$ref": "file:///etc/passwd"},
        {"type": "strnig"},
        {"type": 7},
        {"properties": 7},
        {"properties": {"a": {"multipleOf": 0}}},
        b'{"properties": {"a": {"maximum": ' + b"9" * 5000 + b"}}}",
        b"[" * 50_000,
    ],
    ids=lambda schema: str(schema)[:40],
)
def test_a_schema_that_cannot_be_applied_lets_any_json_through(schema: Any) -> None:
    assert fits('{"a": 1e308, "b": ' + "9" * 5000 + "}", schema)


def test_a_number_of_any_length_is_json() -> None:
    assert fits("9" * 5000, {"type": "number"})
    assert not fits("9" * 5000, {"type": "string"})


DOUBLING = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {}}}
EVIL = "(a+)+$"


@pytest.mark.parametrize(
    ("answer", "schema"),
    [
        ("a" * 28 + "!", {"pattern": EVIL}),
        ({"a" * 28 + "!": 1}, {"patternProperties": {EVIL: {}}}),
        ({"a" * 28 + "!": 1}, {"patternProperties": {EVIL: {}}, "additionalProperties": False}),
        ({"a" * 28 + "!": 1}, {"patternProperties": {EVIL: {}}, "unevaluatedProperties": False}),
        ({"a" * 28 + "!": 1}, {"propertyNames": {"pattern": EVIL}}),
        ([[n, str(n)][n % 2] for n in range(20_000)], {"uniqueItems": True}),
        (1, DOUBLING | {"$ref": "#/$defs/d0"}),
    ],
    ids=["pattern", "patternProperties", "additional", "unevaluated", "names", "unique", "doubling"],
)
def test_no_schema_makes_the_server_stand_still(answer: Any, schema: Any) -> None:
    start = monotonic()
    assert fits(json.dumps(answer), schema)
    assert monotonic() - start < 5


def test_properties_that_are_named_like_keywords_are_only_properties() -> None:
    schema = {"properties": {"pattern": {"type": "string"}}, "additionalProperties": False}
    assert fits({"pattern": "a"}, schema)
    assert not fits({"pattern": 1}, schema)


def test_an_answer_of_a_megabyte_has_only_to_be_json() -> None:
    assert fits(json.dumps("a" * 1_100_000), {"type": "integer"})
    assert not fits('"' + "a" * 1_100_000, {"type": "integer"})
