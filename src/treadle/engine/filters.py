"""Attribute filters: which are well formed, and what they mean (contract §13.4).

This is the only place that gives a filter a meaning. The result is a set of files, and that is all an index ever sees,
so a filter means the same on every index (docs/adr/0007-filters-become-sets-of-files.md). The rules:

- Numbers compare as numbers: 9 < 100, 1 equals 1.0. Strings compare as strings, by code point: "9" > "100".
- A truth value equals only the same truth value; `true` is neither 1 nor "true".
- Values of different kinds are not equal, and none is before the other: `eq` and the ordered comparisons fail, `ne`
  holds.
- `in` holds if one value of the list is equal, `nin` if none is. So `in []` never holds and `nin []` always does.
- Without the attribute, `ne` and `nin` hold and nothing else does.
- `and []` always holds, `or []` never.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import ge, gt, le, lt

from treadle.errors import InvalidRequest
from treadle.wire.retrieval import MAX_DEPTH, Attributes, AttributeValue, Filter

Predicate = Callable[[Attributes], bool]

MAX_COMPARISONS = 1_000
"""In one filter. Each is evaluated for every file of a store."""

_ORDERED = {"gt": gt, "gte": ge, "lt": lt, "lte": le}
_LISTS = ("in", "nin")
_COMPOUNDS = ("and", "or")


def checked(filter: Filter, at: str = "filters") -> Filter:
    """The filter, if it is well formed. InvalidRequest, with `param` the path of the fault below `at`, otherwise."""
    comparisons = _check(filter, at, 1)
    if comparisons > MAX_COMPARISONS:
        raise InvalidRequest(f"A filter may hold {MAX_COMPARISONS} comparisons at most, not {comparisons}.", param=at)
    return filter


def compile_filter(filter: Filter) -> Predicate:
    """Whether attributes pass a filter that was checked, as a function."""
    if filter.type in _COMPOUNDS:
        return _compound(filter.type == "and", [compile_filter(part) for part in filter.filters or []])
    key, value = filter.key or "", filter.value
    if filter.type in _LISTS:
        return _membership(key, value if isinstance(value, list) else [], expected=filter.type == "in")
    assert value is not None
    assert not isinstance(value, list)
    if filter.type in ("eq", "ne"):
        return _membership(key, [value], expected=filter.type == "eq")
    return _ordered(key, value, _ORDERED[filter.type])


def _check(filter: Filter, at: str, depth: int) -> int:
    """Gives the number of comparisons."""
    if filter.type not in _COMPOUNDS:
        _check_comparison(filter, at)
        return 1
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"Filters may be nested {MAX_DEPTH} deep at most.", param=at)
    _forbid(filter.key is not None, f"{at}.key", filter.type)
    _forbid(filter.value is not None, f"{at}.value", filter.type)
    if filter.filters is None:
        raise _missing(f"{at}.filters", filter.type)
    return sum(_check(part, f"{at}.filters[{n}]", depth + 1) for n, part in enumerate(filter.filters))


def _check_comparison(filter: Filter, at: str) -> None:
    _forbid(filter.filters is not None, f"{at}.filters", filter.type)
    if filter.key is None:
        raise _missing(f"{at}.key", filter.type)
    if filter.value is None:
        raise _missing(f"{at}.value", filter.type)
    if isinstance(filter.value, list) != (filter.type in _LISTS):
        wanted = "an array of values" if filter.type in _LISTS else "one value, not an array"
        raise InvalidRequest(f"A filter of type '{filter.type}' takes {wanted}.", param=f"{at}.value")
    if filter.type in _ORDERED and isinstance(filter.value, bool):
        raise InvalidRequest(
            f"A filter of type '{filter.type}' takes a number or a string: truth values have no order.",
            param=f"{at}.value",
        )


def _forbid(present: bool, path: str, kind: str) -> None:
    if present:
        raise InvalidRequest(f"A filter of type '{kind}' has no '{path.rpartition('.')[2]}'.", param=path)


def _missing(path: str, kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"A filter of type '{kind}' needs '{path.rpartition('.')[2]}'.", param=path, code="missing_required_parameter"
    )


def _compound(conjunction: bool, parts: list[Predicate]) -> Predicate:
    if conjunction:
        return lambda attributes: all(part(attributes) for part in parts)
    return lambda attributes: any(part(attributes) for part in parts)


def _kind(value: AttributeValue) -> type:
    """Values are compared within a kind only: truth values, numbers, strings."""
    if isinstance(value, bool):
        return bool
    return str if isinstance(value, str) else float


def _membership(key: str, values: list[AttributeValue], *, expected: bool) -> Predicate:
    # Python holds 1 == 1.0 == True and hashes them alike; the kind beside the value tells True apart.
    wanted = frozenset((_kind(value), value) for value in values)

    def passes(attributes: Attributes) -> bool:
        value = attributes.get(key)
        found = value is not None and (_kind(value), value) in wanted
        return found is expected

    return passes


def _ordered(key: str, bound: AttributeValue, holds: Callable[[AttributeValue, AttributeValue], bool]) -> Predicate:
    kind = _kind(bound)

    def passes(attributes: Attributes) -> bool:
        value = attributes.get(key)
        return value is not None and _kind(value) is kind and holds(value, bound)

    return passes
