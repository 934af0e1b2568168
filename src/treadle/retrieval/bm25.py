"""BM25 for one word of one chunk, as every index of ours weighs words."""

from __future__ import annotations

from math import log1p

K1, B = 1.2, 0.75
"""The usual constants: how fast repeating a word stops to count, and how much long chunks are held back."""

MANY_CHUNKS = 5_000
COMMON_SHARE = 0.05
"""In a collection of more than MANY_CHUNKS, a word that is in more than this share of them is not looked for, unless
all words are like that: it says little, and its postings are most of the work."""


def rarity(chunks: int, holding: int) -> float:
    """What a word is worth that `holding` of the `chunks` hold. Above 0 even for a word that all hold."""
    return log1p((chunks - holding + 0.5) / (holding + 0.5))


def weight(rarity: float, count: int, length: int, mean_length: float) -> float:
    """What a word weighs that a chunk of `length` words holds `count` times."""
    return rarity * count * (K1 + 1) / (count + K1 * (1 - B + B * length / max(mean_length, 1.0)))


def telling(words: list[str], chunks: int, holding: dict[str, int]) -> list[str]:
    """The words that are worth looking for; `holding` says how many chunks hold each."""
    if chunks <= MANY_CHUNKS:
        return words
    rare = [word for word in words if holding[word] <= COMMON_SHARE * chunks]
    return rare or (words and [min(words, key=holding.__getitem__)])
