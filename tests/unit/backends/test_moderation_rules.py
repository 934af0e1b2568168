"""What the built-in moderator flags, and what it leaves alone."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from treadle.backends.moderation_rules import RuleModerator


async def flagged(text: str, **rules: Any) -> list[str]:
    verdict = await RuleModerator(**rules).judge(text)
    found = [name for name, there in verdict.categories.items() if there]
    assert verdict.flagged == bool(found)
    assert verdict.scores == {name: float(there) for name, there in verdict.categories.items()}
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a Mandrake.", True),
        ("MANDRAKE", True),
        ("the dark\n art", True),
        ("mandrakes", False),
        ("amandrake", False),
        ("darkart", False),
        ("I write C++ here", True),
        ("C", False),
    ],
)
async def test_words_are_whole_and_in_any_capitals(text: str, found: bool) -> None:
    assert await flagged(text, words=["mandrake", "dark art", "C++"]) == (["words"] if found else [])


async def test_patterns_are_regular_expressions() -> None:
    assert await flagged("project ORION-7", patterns=[r"orion-\d"]) == ["patterns"]
    assert await flagged("project Orion", patterns=[r"orion-\d"]) == []
    with pytest.raises(ValueError, match="no regular expression"):
        RuleModerator(patterns=["("])


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN RSA PRIVATE KEY-----",
        "key sk-" + "a1" * 12,
        "AKIA" + "A1B2" * 4,
        "ghp_" + "a" * 36,
        "xoxb-" + "1" * 12,
        "AIza" + "x" * 35,
        "eyJ" + "a" * 20 + ".eyJ" + "b" * 20 + "." + "c" * 20,
    ],
)
async def test_secrets_are_found(text: str) -> None:
    assert await flagged(f"use {text} now", secrets=True) == ["secrets"]


@pytest.mark.parametrize("text", ["task-based", "sk-short", "AKIA", "-----BEGIN CERTIFICATE-----", "eyJust saying"])
async def test_what_only_looks_like_a_secret_is_none(text: str) -> None:
    assert await flagged(text, secrets=True) == []


@pytest.mark.parametrize(
    "text",
    [
        "mail ada@example.com today",
        "card 4111 1111 1111 1111",
        "card 4111-1111-1111-1111.",
        "account DE89 3704 0044 0532 0130 00",
        "GB82WEST12345698765432",
        "number 123-45-6789",
    ],
)
async def test_personal_data_are_found(text: str) -> None:
    assert await flagged(text, personal=True) == ["personal_data"]


@pytest.mark.parametrize(
    "text",
    [
        "ada at example.com",
        "4111 1111 1111 1112",
        "0000 0000 0000 0000",
        "DE89 3704 0044 0532 0130 01",
        "000-12-3456",
        "call 555-0100 at 10:30 on 2026-12-01",
        "order 1234567890",
    ],
)
async def test_numbers_that_mean_nothing_are_left_alone(text: str) -> None:
    assert await flagged(text, personal=True) == []


@pytest.mark.parametrize("unit", ["a@", "1 ", "A1B2 ", "a.", "eyJ", "x" * 50 + "@", "sk-", "1-"])
async def test_no_text_takes_long(unit: str) -> None:
    begun = perf_counter()
    await flagged(unit * (200_000 // len(unit)), secrets=True, personal=True, words=["mandrake"])
    assert perf_counter() - begun < 5
