"""What filters mean, and which are refused (contract §13.4, bug case 64)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from treadle.engine.filters import MAX_COMPARISONS, checked, compile_filter
from treadle.errors import InvalidRequest
from treadle.wire.retrieval import MAX_DEPTH, Attributes, Filter

DECODER = msgspec.json.Decoder(Filter)


def passes(filter: dict[str, Any], attributes: Attributes) -> bool:
    return compile_filter(checked(DECODER.decode(msgspec.json.encode(filter))))(attributes)


def test_numbers_compare_as_numbers() -> None:
    above = {"type": "gt", "key": "n", "value": 9}
    assert passes(above, {"n": 100})
    assert not passes(above, {"n": 9})
    assert passes(above, {"n": 9.5})
    assert passes({"type": "eq", "key": "n", "value": 1}, {"n": 1.0})
    assert passes({"type": "in", "key": "n", "value": [2, 1.0]}, {"n": 1})
    assert passes({"type": "gt", "key": "n", "value": 2**53}, {"n": 2**53 + 1})


def test_strings_compare_as_strings() -> None:
    assert not passes({"type": "gt", "key": "s", "value": "9"}, {"s": "100"})
    assert passes({"type": "lte", "key": "s", "value": "2024-06-30"}, {"s": "2024-05-01"})
    assert not passes({"type": "eq", "key": "s", "value": "A"}, {"s": "a"})


def test_true_is_neither_one_nor_a_string() -> None:
    assert passes({"type": "eq", "key": "b", "value": True}, {"b": True})
    for value in (1, 1.0, "true", "True", False):
        assert not passes({"type": "eq", "key": "b", "value": True}, {"b": value})
        assert passes({"type": "ne", "key": "b", "value": True}, {"b": value})
        assert not passes({"type": "in", "key": "b", "value": [True]}, {"b": value})
    assert not passes({"type": "eq", "key": "b", "value": 1}, {"b": True})
    assert not passes({"type": "gte", "key": "b", "value": 0}, {"b": True})


def test_values_of_different_kinds_are_unequal_and_have_no_order() -> None:
    for value, other in ((1, "1"), ("1", 1)):
        assert not passes({"type": "eq", "key": "k", "value": value}, {"k": other})
        assert passes({"type": "ne", "key": "k", "value": value}, {"k": other})
        for kind in ("gt", "gte", "lt", "lte"):
            assert not passes({"type": kind, "key": "k", "value": value}, {"k": other})


def test_a_missing_attribute_passes_ne_and_nin_only() -> None:
    for kind in ("eq", "ne", "gt", "gte", "lt", "lte"):
        assert passes({"type": kind, "key": "k", "value": 1}, {"other": 1}) is (kind == "ne")
    assert passes({"type": "nin", "key": "k", "value": [1]}, {})
    assert not passes({"type": "in", "key": "k", "value": [1]}, {})


def test_empty_lists_follow_from_the_rules() -> None:
    assert not passes({"type": "in", "key": "k", "value": []}, {"k": 1})
    assert passes({"type": "nin", "key": "k", "value": []}, {"k": 1})
    assert passes({"type": "and", "filters": []}, {})
    assert not passes({"type": "or", "filters": []}, {})


@pytest.mark.parametrize("key", ["it's", 'a "b"', "a.b", "$x", "", "ключ", "' OR 1=1 --", "%_"])
def test_any_key_can_be_asked_for(key: str) -> None:
    assert passes({"type": "eq", "key": key, "value": key}, {key: key})
    assert not passes({"type": "eq", "key": key, "value": key}, {key + "x": key})


def test_compounds_nest() -> None:
    def by(kind: str, *filters: dict[str, Any]) -> dict[str, Any]:
        return {"type": kind, "filters": list(filters)}

    def has(key: str) -> dict[str, Any]:
        return {"type": "eq", "key": key, "value": 1}

    nested = by("and", has("a"), by("or", has("b"), by("and", has("c"), has("d"))))
    assert passes(nested, {"a": 1, "b": 1})
    assert passes(nested, {"a": 1, "c": 1, "d": 1})
    assert not passes(nested, {"a": 1, "c": 1})
    assert not passes(nested, {"b": 1, "c": 1, "d": 1})


def nested(depth: int) -> Filter:
    inner = Filter(type="eq", key="k", value=1)
    for _ in range(depth):
        inner = Filter(type="and", filters=[inner])
    return inner


COMPARISON = Filter(type="eq", key="k", value=1)


@pytest.mark.parametrize(
    ("filter", "param"),
    [
        (Filter(type="eq", value=1), "filters.key"),
        (Filter(type="eq", key="k"), "filters.value"),
        (Filter(type="in", key="k"), "filters.value"),
        (Filter(type="and"), "filters.filters"),
        (Filter(type="or", filters=[COMPARISON, Filter(type="and")]), "filters.filters[1].filters"),
        (
            Filter(type="or", filters=[Filter(type="and", filters=[COMPARISON, Filter(type="ne", key="k")])]),
            "filters.filters[0].filters[1].value",
        ),
        (Filter(type="in", key="k", value="a"), "filters.value"),
        (Filter(type="nin", key="k", value=1), "filters.value"),
        (Filter(type="eq", key="k", value=[1]), "filters.value"),
        (Filter(type="gt", key="k", value=["a", "b"]), "filters.value"),
        (Filter(type="lt", key="k", value=True), "filters.value"),
        (Filter(type="eq", key="k", value=1, filters=[COMPARISON]), "filters.filters"),
        (Filter(type="and", key="k", filters=[COMPARISON]), "filters.key"),
        (Filter(type="and", value=1, filters=[COMPARISON]), "filters.value"),
        (nested(MAX_DEPTH + 1), "filters" + ".filters[0]" * MAX_DEPTH),
        (Filter(type="or", filters=[COMPARISON] * (MAX_COMPARISONS + 1)), "filters"),
    ],
)
def test_a_malformed_filter_is_refused_and_its_place_named(filter: Filter, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked(filter)
    assert refused.value.param == param
    with pytest.raises(InvalidRequest) as refused:
        checked(filter, "tools[2].filters")
    assert refused.value.param == "tools[2]." + param


def test_the_deepest_and_the_longest_filter_are_accepted() -> None:
    assert compile_filter(checked(nested(MAX_DEPTH)))({"k": 1})
    assert compile_filter(checked(Filter(type="or", filters=[COMPARISON] * MAX_COMPARISONS)))({"k": 1})


# The rules again, as plainly as they can be said, for all values.

Value = str | int | float | bool
_values: st.SearchStrategy[Value] = st.one_of(
    st.booleans(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, 1.5, -2.0]), st.sampled_from(["", "a", "b", "1"])
)
_keys = st.sampled_from(["x", "y", "z"])
_attributes: st.SearchStrategy[Attributes] = st.dictionaries(_keys, _values)
_filters: st.SearchStrategy[Filter] = st.recursive(
    st.one_of(
        st.builds(Filter, type=st.sampled_from(["eq", "ne"]), key=_keys, value=_values),
        st.builds(
            Filter,
            type=st.sampled_from(["gt", "gte", "lt", "lte"]),
            key=_keys,
            value=_values.filter(lambda value: not isinstance(value, bool)),
        ),
        st.builds(Filter, type=st.sampled_from(["in", "nin"]), key=_keys, value=st.lists(_values, max_size=3)),
    ),
    lambda inner: st.builds(Filter, type=st.sampled_from(["and", "or"]), filters=st.lists(inner, max_size=3)),
    max_leaves=6,
)


def same_kind(one: Value, other: Value) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return isinstance(one, bool) and isinstance(other, bool)
    return isinstance(one, str) == isinstance(other, str)


def plainly(filter: Filter, attributes: Attributes) -> bool:
    if filter.type in ("and", "or"):
        results = [plainly(part, attributes) for part in filter.filters or []]
        return all(results) if filter.type == "and" else any(results)
    if filter.key not in attributes:
        return filter.type in ("ne", "nin")
    assert filter.value is not None
    value = attributes[filter.key]
    listed = filter.value if isinstance(filter.value, list) else [filter.value]
    equal = any(same_kind(value, one) and value == one for one in listed)
    if filter.type in ("eq", "in"):
        return equal
    if filter.type in ("ne", "nin"):
        return not equal
    compare: Callable[[Any, Any], bool] = {
        "gt": operator.gt,
        "gte": operator.ge,
        "lt": operator.lt,
        "lte": operator.le,
    }[filter.type]
    return same_kind(value, listed[0]) and compare(value, listed[0])


@given(_filters, _attributes)
@example(Filter(type="eq", key="x", value=True), {"x": 1})
def test_filters_mean_what_plain_python_says(filter: Filter, attributes: Attributes) -> None:
    assert compile_filter(checked(filter))(attributes) is plainly(filter, attributes)
