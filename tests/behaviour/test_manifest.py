"""Every promise of the manifest has a test, and no test names a promise that is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.manifest import BEHAVIOURS, PENDING

TESTS = Path(__file__).parents[1]


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def claims(root: Path) -> Iterator[tuple[str, str]]:
    """(promise id, where) for each id that a test claims. Read from the source, so it holds for any selection of
    tests; a test that is skipped or expected to fail keeps no promise."""
    for path in sorted(root.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            marks = [mark for mark in node.decorator_list if isinstance(mark, ast.Call)]
            off = {name_of(mark.func if isinstance(mark, ast.Call) else mark) for mark in node.decorator_list}
            if off & {"skip", "xfail"}:
                continue
            for mark in marks:
                if name_of(mark.func) == "behaviour":
                    yield from ((str(ast.literal_eval(one)), f"{path.name}::{node.name}") for one in mark.args)


def faults(promised: set[str], pending: set[str], claimed: list[tuple[str, str]]) -> list[str]:
    tested = {promise for promise, _ in claimed}
    return [
        *(f"{where} names {promise!r}, which nobody promised" for promise, where in claimed if promise not in promised),
        *(f"{promise} has no test" for promise in sorted(promised - tested - pending)),
        *(f"{promise} has its test: take it out of PENDING" for promise in sorted(pending & tested)),
        *(f"{promise} is pending but not promised" for promise in sorted(pending - promised)),
    ]


def test_promises_and_tests_agree() -> None:
    assert faults({one.id for one in BEHAVIOURS}, PENDING, list(claims(TESTS))) == []


def test_each_promise_has_its_own_id_and_one_sentence() -> None:
    ids = [one.id for one in BEHAVIOURS]
    assert len(ids) == len(set(ids))
    for one in BEHAVIOURS:
        assert one.promise.endswith("."), one.id
        assert len(one.promise) <= 120, one.id


@pytest.mark.parametrize(
    ("pending", "claimed", "expected"),
    [
        (set(), [("a", "t"), ("b", "t")], []),
        ({"b"}, [("a", "t")], []),
        (set(), [("a", "t")], ["b has no test"]),
        ({"a", "b"}, [("a", "t")], ["a has its test: take it out of PENDING"]),
        ({"a", "b", "c"}, [], ["c is pending but not promised"]),
        ({"a", "b"}, [("x", "t")], ["t names 'x', which nobody promised"]),
    ],
)
def test_each_kind_of_disagreement_is_named(
    pending: set[str], claimed: list[tuple[str, str]], expected: list[str]
) -> None:
    assert faults({"a", "b"}, pending, claimed) == expected


def test_claims_are_read_from_decorators_and_skipped_tests_claim_nothing(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "@behaviour('a', 'b')\nasync def test_one(): ...\n"
        "@pytest.mark.behaviour('c')\ndef test_two(): ...\n"
        "@pytest.mark.skip\n@behaviour('d')\ndef test_three(): ...\n"
        "@pytest.mark.xfail(reason='x')\n@behaviour('e')\ndef test_four(): ...\n"
    )
    assert list(claims(tmp_path)) == [
        ("a", "test_x.py::test_one"),
        ("b", "test_x.py::test_one"),
        ("c", "test_x.py::test_two"),
    ]
