"""Which words a text holds, and to which stems they are brought."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.retrieval.stem import stem
from treadle.retrieval.words import MAX_LENGTH, MAX_QUERY_WORDS, query_words, words

# The examples of Porter's paper, taken through all steps.
STEMS = """
caresses caress ponies poni ties ti cats cat feed feed agreed agre plastered plaster bled bled motoring motor sing sing
conflated conflat troubled troubl sized size hopping hop tanned tan falling fall hissing hiss fizzed fizz failing fail
filing file happy happi sky sky relational relat conditional condit rational ration valenci valenc digitizer digit
conformabli conform radicalli radic differentli differ vileli vile analogousli analog vietnamization vietnam
predication predic operator oper feudalism feudal decisiveness decis hopefulness hope callousness callous
formaliti formal sensitiviti sensit sensibiliti sensibl triplicate triplic formative form formalize formal
electriciti electr electrical electr goodness good revival reviv allowance allow inference infer airliner airlin
gyroscopic gyroscop adjustable adjust defensible defens irritant irrit replacement replac adjustment adjust
dependent depend adoption adopt homologou homolog communism commun activate activ angulariti angular
effective effect bowdlerize bowdler probate probat rate rate cease ceas controll control roll roll
playing plai keyed kei yes ye is is as as x2s x2s größen größen
""".split()


@pytest.mark.parametrize(("word", "expected"), list(zip(STEMS[::2], STEMS[1::2], strict=True)))
def test_english_words_are_brought_to_their_stems(word: str, expected: str) -> None:
    assert stem(word) == expected


def test_a_text_has_its_words_in_order_and_as_often_as_they_occur() -> None:
    assert words("The cat, the CATS and snake_case2: 3.5!") == [
        "the",
        "cat",
        "the",
        "cat",
        "and",
        "snake",
        "case2",
        "3",
        "5",
    ]


def test_case_and_latin_diacritics_do_not_count() -> None:
    assert words("Crème BRÛLÉE ＦＵＬＬ ﬁne Straße") == words("creme brulee full fine strasse")
    assert words("ÅSA") == words("A\u030asa") == ["asa"]


def test_vowel_signs_of_other_scripts_are_parts_of_words() -> None:
    assert words("हिन्दी में, שָׁלוֹם مُحَمَّد") == ["हिन्दी", "में", "שָׁלוֹם", "مُحَمَّد"]


def test_scripts_without_spaces_are_cut_into_characters_and_pairs() -> None:
    assert words("黒猫が2匹") == ["黒", "猫", "が", "黒猫", "猫が", "2", "匹"]
    assert query_words("黒猫が") == ["黒猫", "猫が"]
    assert query_words("猫") == ["猫"]
    assert set(query_words("데이터베이스")) <= set(words("데이터베이스를"))


def test_a_query_counts_each_word_once_and_not_too_many() -> None:
    assert query_words("red, Red; reds") == ["red"]
    assert len(query_words(" ".join(f"w{n}" for n in range(1000)))) == MAX_QUERY_WORDS
    assert query_words("x" * 1000) == ["x" * MAX_LENGTH]


@given(st.text())
def test_a_text_is_found_by_any_of_its_words(text: str) -> None:
    found = words(text)
    assert set(query_words(text)) <= set(found)
    assert all(word and len(word) <= MAX_LENGTH and " " not in word and "·" not in word for word in found)
