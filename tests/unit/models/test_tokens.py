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
from treadle.errors import InvalidRequest
from treadle.models.tokens import Tokens, estimate
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
    assert counter.count("a\ud800b\x00c", O200K) > 2


@pytest.mark.parametrize("model", [O200K, CL100K])
@pytest.mark.parametrize("unit", ["a", " ", "\n", "=", "1", "字", " \n", "\u3000", "'s", "\u0301"])
def test_a_megabyte_of_one_thing_takes_no_time(counter: Tokens, unit: str, model: str) -> None:
    text = unit * (1_000_000 // len(unit))
    counter.load(model)
    start = time.process_time()
    assert counter.count(text, model) > 7_000
    assert time.process_time() - start < 3


def test_a_long_run_counts_in_proportion(counter: Tokens) -> None:
    assert counter.count("a" * 1_000_000, O200K) == 10 * counter.count("a" * 100_000, O200K)


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
        ("something-new", None),
    ],
)
def test_model_names_lead_to_an_encoding(counter: Tokens, model: str, name: str | None) -> None:
    assert counter.encoding_name(model) == name


TEXT = "これは試験です。 Some words, 12345 and {code: true}"


def test_each_step_of_the_chain_comes_before_the_next() -> None:
    plain, default = Tokens(), Tokens("cl100k_base", {"gpt-4o": "o200k_base"})
    new, old = plain.count(TEXT, encoding="o200k_base"), plain.count(TEXT, encoding="cl100k_base")
    assert new != old
    assert default.count(TEXT, "gpt-4o", "o200k_base") == new  # 1: the request
    assert default.count(TEXT, "gpt-4o") == old  # 2: the server's default
    assert Tokens(families={"gpt-4o": "cl100k_base"}).count(TEXT, "gpt-4o") == new  # 3: the name
    assert plain.count(TEXT, "ollama/llama3.2:3b") == old  # 4: the family
    assert plain.count(TEXT, "never-heard-of") == estimate(TEXT)  # 5: by characters


def test_families_can_be_added_and_the_longest_beginning_counts() -> None:
    counter = Tokens(families={"House": "cl100k_base", "house-new": "o200k_base", "llama4": "o200k_base"})
    names = {model: counter.encoding_name(model) for model in ("x/HOUSE-1", "house-new-2", "llama4-x", "llama3")}
    assert names == {
        "x/HOUSE-1": "cl100k_base",
        "house-new-2": "o200k_base",
        "llama4-x": "o200k_base",
        "llama3": "cl100k_base",
    }


def test_an_encoding_that_is_not_here_is_refused_by_name(counter: Tokens) -> None:
    counter.check(None)
    counter.check("o200k_base")
    with pytest.raises(InvalidRequest) as refused:
        counter.check("p50k_base")
    assert refused.value.param == "tokenizer_encoding"


@pytest.mark.parametrize(
    "text",
    [
        "The committee will meet again on Tuesday, and until then nobody should change anything in the plan. " * 20,
        "会議は火曜日に再開されるので、それまでは誰も計画を変更しないでください。" * 20,
        "委员会将于星期二再次开会，在此之前任何人都不得更改计划中的任何内容。" * 20,
        "    def add(self, left: int, right: int) -> int:\n        return self.total + left * right\n" * 20,
        '{"name": "add", "arguments": {"left": 12, "right": [1, 2, 3]}, "strict": true}\n' * 20,
    ],
)
def test_estimates_are_near_the_truth_for_prose_code_and_wide_scripts(counter: Tokens, text: str) -> None:
    assert estimate(text) == pytest.approx(counter.count(text, O200K), rel=0.35)


@pytest.mark.parametrize("model", [O200K, CL100K, "never-heard-of"])
def test_ten_kilobytes_are_counted_in_a_millisecond(counter: Tokens, model: str) -> None:
    text = ("The committee will meet again on Tuesday; see {plan: 17}. " * 200)[:10_000]
    counter.load(model)
    times = []
    for _ in range(100):
        start = time.thread_time()
        counter.count(text, model)
        times.append(time.thread_time() - start)
    assert min(times) < 0.0025, "the budget is 1 ms; shared machines have been seen to take twice as long"


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
        assert set(pool.map(lambda _: fresh.count("hello world", O200K), range(32))) == {2}


def test_importing_the_module_loads_no_tokenizer() -> None:
    program = "import sys, treadle.models.tokens; sys.exit('tiktoken' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=20).returncode == 0
