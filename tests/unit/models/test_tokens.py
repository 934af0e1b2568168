"""Token counts: exact, offline, and in linear time for any text."""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle import vocabularies
from treadle.models.tokens import Tokens, encoding_name
from treadle.vocabularies import blocks

O200K, CL100K = "gpt-4o", "gpt-4"


@pytest.fixture(scope="module")
def counter() -> Tokens:
    return Tokens()


@pytest.mark.parametrize(
    ("text", "o200k", "cl100k"),
    [
        ("", 0, 0),
        ("hello world", 2, 2),
        ("Hello, world! 12345", 7, 7),
        ("Привет, мир", 4, 6),
        ("こんにちは世界", 2, 4),
        ("👩‍👩‍👧", 8, 13),
        ("    return x\n\n", 4, 4),
        ("a" * 16, 2, 2),
    ],
)
def test_counts_are_those_that_openai_bills(counter: Tokens, text: str, o200k: int, cl100k: int) -> None:
    assert (counter.count(text, O200K), counter.count(text, CL100K)) == (o200k, cl100k)


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base"])
def test_the_splitting_patterns_are_those_of_the_installed_tiktoken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    openai_public = importlib.import_module("tiktoken_ext.openai_public")
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    assert "|".join(vocabularies._PATTERNS[name]) == getattr(openai_public, name)()["pat_str"]


@pytest.mark.parametrize("model", [O200K, CL100K])
def test_markers_in_a_text_count_as_ordinary_text(counter: Tokens, model: str) -> None:
    for marker in ("<|endoftext|>", "<|endofprompt|>", "<|fim_prefix|>", "<|im_start|>"):
        assert counter.count(marker, model) > 3


def test_lone_surrogates_and_nul_bytes_are_counted(counter: Tokens) -> None:
    assert counter.count("a\ud800b\x00c") > 2


@pytest.mark.parametrize("model", [O200K, CL100K])
@pytest.mark.parametrize("unit", ["a", " ", "\n", "=", "1", "字", " \n", "\u3000", "'s", "\u0301"])
def test_a_megabyte_of_one_thing_takes_no_time(counter: Tokens, unit: str, model: str) -> None:
    text = unit * (1_000_000 // len(unit))
    counter.load(model)
    start = time.process_time()
    assert counter.count(text, model) > 7_000
    assert time.process_time() - start < 3


def test_a_long_run_counts_in_proportion(counter: Tokens) -> None:
    assert counter.count("a" * 1_000_000) == 10 * counter.count("a" * 100_000)


WORD = st.text(st.sampled_from("aBé字1ß²\u0301'"), min_size=1, max_size=8).filter(lambda w: w[-1].isalnum())
MARK = st.sampled_from([" ", "  ", "\n", "\r\n", " \n ", ".", ". ", ", ", "(", "='", "/", "\\n", "。", "\t", '": "'])


@given(st.lists(st.tuples(WORD, MARK), min_size=20, max_size=80), st.sampled_from([O200K, CL100K]))
@settings(deadline=None, max_examples=200)
def test_counting_in_blocks_changes_no_count(counter: Tokens, parts: list[tuple[str, str]], model: str) -> None:
    text = "".join(word + mark for word, mark in parts)
    pieces = blocks(text, 30)
    assert "".join(pieces) == text
    assert sum(counter.count(piece, model) for piece in pieces) == counter.count(text, model)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("", "o200k_base"),
        ("gpt-4o-mini", "o200k_base"),
        ("azure/gpt-4.1-nano", "o200k_base"),
        ("gpt-5.2", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("openrouter/openai/o4-mini", "o200k_base"),
        ("gpt-oss:20b", "o200k_base"),
        ("ft:gpt-4o-2024-08-06:org", "o200k_base"),
        ("gpt-4-turbo", "cl100k_base"),
        ("ft:gpt-3.5-turbo:org", "cl100k_base"),
        ("ollama/llama3.2:1b", "cl100k_base"),
        ("meta-llama/Llama-3.3-70B-Instruct", "cl100k_base"),
        ("mistral-small-latest", "cl100k_base"),
        ("mixtral-8x7b", "cl100k_base"),
        ("claude-sonnet-4", "cl100k_base"),
        ("google/gemma-3-27b-it", "cl100k_base"),
        ("Qwen/Qwen3-8B", "cl100k_base"),
        ("phi-4", "cl100k_base"),
        ("phi3:mini", "cl100k_base"),
        ("deepseek-chat", "cl100k_base"),
        ("something-new", "o200k_base"),
    ],
)
def test_model_names_lead_to_an_encoding(model: str, name: str) -> None:
    assert encoding_name(model) == name


def test_nothing_is_fetched_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    fresh = Tokens()
    assert fresh.count("hello world", O200K) == fresh.count("hello world", CL100K) == 2


def test_threads_that_count_first_at_once_agree() -> None:
    fresh = Tokens()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: fresh.count("hello world"), range(32))) == {2}


def test_importing_the_module_loads_no_tokenizer() -> None:
    program = "import sys, treadle.models.tokens; sys.exit('tiktoken' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=20).returncode == 0
