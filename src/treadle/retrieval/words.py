"""Which words a text holds, for keyword search. Every index that does not bring its own analysis uses this one, so
that the same text is found by the same words everywhere.

Words are runs of letters and digits without case and without Latin diacritics, and English ones are brought to their
stems. Scripts that put no spaces between words (Chinese, Japanese, Thai and others; Korean, whose words carry endings)
are cut into single characters and pairs of neighbours, since a whole run would only ever match itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from treadle.retrieval.stem import stem

VERSION = 1
"""Of the rules below. An index that keeps words has to be built anew when it changes."""

MAX_LENGTH = 64
"""Characters of a word that count."""

MAX_QUERY_WORDS = 64
"""Different words of a query that count, the first ones."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\U00020000-\U0003ffff"
)
# Vowel signs and the like are no letters to Python, but parts of words in Hebrew, Arabic and the scripts of India.
_MARKS = "\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
_RUNS = re.compile(f"([{_UNSPACED}]+)|((?:(?![{_UNSPACED}])[^\\W_]|[{_MARKS}])+)")
_ASCII_RUNS = re.compile("[a-z0-9]+")
_DIACRITICS = re.compile("[\u0300-\u036f]+")


def words(text: str) -> list[str]:
    """The words of a text, in order, as often as they occur."""
    return [word for spaced, run in _runs(text) for word in ([_word(run)] if spaced else [*run, *_pairs(run)])]


def query_words(text: str) -> list[str]:
    """The different words that a query looks for. Of a run without spaces these are its pairs: single characters are
    too common."""
    found: dict[str, None] = {}
    for spaced, run in _runs(text):
        for word in [_word(run)] if spaced else (_pairs(run) or [run]):
            found[word] = None
            if len(found) == MAX_QUERY_WORDS:
                return list(found)
    return list(found)


def _runs(text: str) -> Iterator[tuple[bool, str]]:
    """Runs of word characters, and whether their script puts spaces between words."""
    if text.isascii():
        for run in _ASCII_RUNS.finditer(text.lower()):
            yield True, run[0]
        return
    plain = _DIACRITICS.sub("", unicodedata.normalize("NFKD", text.casefold()))
    for run in _RUNS.finditer(unicodedata.normalize("NFC", plain)):
        yield run[1] is None, run[0]


def _word(run: str) -> str:
    return stem(run[:MAX_LENGTH])


def _pairs(run: str) -> list[str]:
    return [run[n : n + 2] for n in range(len(run) - 1)]
