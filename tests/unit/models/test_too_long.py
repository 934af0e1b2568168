"""The words in which model servers refuse a context that is too long, and words that only seem to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from treadle.errors import ContextTooLong, ServerError
from treadle.models.upstream import fault_in_stream, fault_of

TEXTS = {
    "openai": "This model's maximum context length is 128000 tokens. However, your messages resulted in 130015 tokens. "
    "Please reduce the length of the messages.",
    "openai 2": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "openai 3": "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300512 tokens.",
    "vllm": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the "
    "messages, 1000 in the completion). Please reduce the length of the messages or completion.",
    "vllm 2": "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that "
    "`max_model_len` is no smaller than the number of text tokens.",
    "vllm 3": "'max_tokens' or 'max_completion_tokens' is too large: 1000. This model's maximum context length is 4096 "
    "tokens and your request has 3500 input tokens (1000 > 4096 - 3500).",
    "ollama": "the input length exceeds the context length",
    "ollama 2": "input length exceeds maximum context length",
    "llama.cpp": "the request exceeds the available context size. try increasing the context size or enable context "
    "shift",
    "llama.cpp 2": "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "llama.cpp 3": "input is larger than the max context size. skipped",
    "anthropic": "prompt is too long: 208310 tokens > 200000 maximum",
    "anthropic 2": "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length "
    "or `max_tokens` and try again",
    "gemini": "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "gemini 2": "Unable to submit request because the input token count is 40000 but model only supports up to 32768. "
    "Reduce the input token count and try again.",
    "mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "bedrock": "Input is too long for requested model.",
    "xai": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "sglang": "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "tgi": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens",
    "cohere": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292.",
    "lm studio": "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with "
    "context length of only 4096 tokens, which is not enough.",
    "openrouter": "This endpoint's maximum context length is 8192 tokens. However, you requested about 9000 tokens.",
}
OTHERS = [
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you gave 100000.",
    "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000.",
    "Invalid 'messages[0].content': string too long. Expected a string with maximum length 10485760.",
    "Rate limit reached for requests",
    "The context parameter is not supported.",
    "Unknown parameter: 'context_window'.",
    "Too many requests",
    "image is too large",
]


def refusal(message: str, **more: Any) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error", "code": None, **more}}).encode()


def fault(status: int, body: bytes) -> ServerError:
    return fault_of(status, body, {}, (), "m")


@pytest.mark.parametrize("name", TEXTS)
def test_the_words_of_each_server_are_understood(name: str) -> None:
    shapes = [
        refusal(TEXTS[name]),
        json.dumps({"object": "error", "message": TEXTS[name], "code": 400}).encode(),  # vLLM, older
        json.dumps({"error": TEXTS[name]}).encode(),  # Ollama
        json.dumps([{"error": {"code": 400, "message": TEXTS[name], "status": "INVALID_ARGUMENT"}}]).encode(),  # Gemini
        json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": TEXTS[name]}}).encode(),
        TEXTS[name].encode(),
    ]
    for body in shapes:
        for status in (400, 413, 422, 500):
            found = fault(status, body)
            assert isinstance(found, ContextTooLong), (status, body)
            assert (found.status, found.code, found.param) == (400, "context_length_exceeded", "input")
    assert isinstance(fault_in_stream(shapes[0], ()), ContextTooLong)


@pytest.mark.parametrize("message", OTHERS)
def test_other_refusals_are_not_taken_for_it(message: str) -> None:
    assert not isinstance(fault(400, refusal(message)), ContextTooLong)


@pytest.mark.parametrize(
    ("field", "value"), [("code", "context_length_exceeded"), ("type", "exceed_context_size_error")]
)
def test_a_code_is_enough(field: str, value: str) -> None:
    assert isinstance(fault(400, refusal("No.", **{field: value})), ContextTooLong)


def test_a_limit_of_rate_stays_one() -> None:
    assert not isinstance(fault(429, refusal(TEXTS["openai"])), ContextTooLong)
