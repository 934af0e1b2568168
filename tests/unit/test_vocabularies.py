"""The vocabularies we ship: unaltered, or refused."""

from __future__ import annotations

import hashlib

import pytest

from treadle.errors import Internal
from treadle.vocabularies import VOCABULARIES, blocks, vocabulary


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_vocabulary_unpacks_to_what_was_published(name: str) -> None:
    assert hashlib.sha256(vocabulary(name)).hexdigest() == VOCABULARIES[name]


def test_an_altered_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VOCABULARIES, "bert_uncased.txt", "0" * 64)
    with pytest.raises(Internal, match=r"bert_uncased\.txt\.xz.*altered"):
        vocabulary("bert_uncased.txt")


def test_blocks_are_bounded_where_no_seam_is_found() -> None:
    pieces = blocks("字" * 1_000, 64)
    assert max(map(len, pieces)) == 64
    assert "".join(pieces) == "字" * 1_000
