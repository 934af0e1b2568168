"""Values on the command line: what is a number, what is text, and what is refused."""

import argparse

import pytest

from treadle.cli.given import attribute, condition, pair, text


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ("k=2026", 2026),
        ("k=-1.5", -1.5),
        ("k=true", True),
        ("k=false", False),
        ("k=True", "True"),
        ('k="2026"', "2026"),
        ("k=007", "007"),
        ("k=v1.0", "v1.0"),
        ("k=null", "null"),
        ("k=[1]", "[1]"),
        ("k=NaN", "NaN"),
        ("k=1e999", "1e999"),
        ("k=" + "9" * 30, "9" * 30),
        ("k=", ""),
        ("k= a b ", " a b "),
        ("k=a=b", "a=b"),
        ("k=" + "[" * 400, "[" * 400),
    ],
)
def test_a_value_is_what_it_is_in_json_or_else_text(given: str, value: object) -> None:
    key, found = pair(given)
    assert (key, found, type(found)) == ("k", value, type(value))


@pytest.mark.parametrize("given", ["k", "=v", " =v", "", "\udcff=1", 'k="\\ud800"', f"{'k' * 65}=1", f"k={'9' * 5000}"])
def test_what_is_no_pair_is_refused(given: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        pair(given)


def test_our_own_attributes_cannot_be_given() -> None:
    assert attribute("paths=x") == ("paths", "x")
    for key in ("path", "sha256"):
        with pytest.raises(argparse.ArgumentTypeError, match="is kept by this command"):
            attribute(f"{key}=x")


def test_a_condition_is_a_pair_or_json() -> None:
    assert condition("k=1") == {"type": "eq", "key": "k", "value": 1}
    assert condition(' {"type": "and", "filters": []}') == {"type": "and", "filters": []}
    for given in ('{"a": NaN}', "{", "{'a': 1}", '{"a":' * 100_000):
        with pytest.raises(argparse.ArgumentTypeError):
            condition(given)


def test_text_is_not_empty() -> None:
    assert text(" a ") == " a "
    for given in ("", " \n", "\udcff"):
        with pytest.raises(argparse.ArgumentTypeError):
            text(given)
