"""Texts that break searches which hand them on as they are: syntax of query languages, nothing, and too much."""

from __future__ import annotations

QUERIES = [
    "",
    " \n\t",
    '"',
    "'",
    '"unclosed',
    "NEAR(a b, 2)",
    "a AND",
    "OR OR OR",
    "NOT",
    "needle*",
    "^needle",
    "-needle",
    "text:needle",
    "{text}:needle",
    "(((",
    "a & | ! <-> b",
    "🎉🎊",
    "\0",
    "needle\0needle",
    "%_\\",
    "'); DROP TABLE chunks; --",
    "needle " * 14_000,
    "x" * 100_000,
    " ".join(f"w{number}" for number in range(15_000)),
]
