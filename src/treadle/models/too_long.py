"""How model servers say that a context does not fit: one table, by what their messages have in common."""

from __future__ import annotations

import re

CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
"""OpenAI's code and its many imitators'; the `type` of llama.cpp, whose `code` is a number."""
STATUSES = frozenset({400, 413, 422, 500})
"""Those under which such a message is believed. Some local servers call it their own fault."""

_PATTERNS = (
    # OpenAI, Azure, vLLM, DeepSeek, OpenRouter, Mistral, LM Studio: "maximum context length is 4096 tokens"
    r"(?:maximum|max|model'?s|exceed\w*)[\w' ]{0,40}context (?:length|window|size|limit)",
    r"context (?:length|window|size|limit)[\w' ]{0,30}(?:exceeded|overflow|is full|of only|reached)",
    r"(?:larger|longer|greater|more) than[\w' ]{0,40}(?:context|maximum model length|max_model_len)",
    r"exceeds? (?:the )?(?:available|model|model's) context",
    # OpenAI on reasoning models; Gemini
    r"input tokens? (?:count[\w() ]{0,30} )?exceeds? the",
    r"input token count[\w() ]{0,30} (?:exceeds|but model only supports)",
    # SGLang, vLLM
    r"input length[\w() ]{0,30} exceeds",
    # Anthropic, Bedrock, Z.ai, xAI
    r"prompt is too long",
    r"input is too long for",
    r"prompt exceeds max length",
    r"maximum prompt length is",
    # Text Generation Inference and Together
    r"`?inputs`? tokens \+ `?max_new_tokens`? must be",
    # Cohere and others
    r"too many tokens: ",
    r"context the overflows",
)
_TOO_LONG = re.compile("|".join(f"(?:{pattern})" for pattern in _PATTERNS), re.IGNORECASE)


def says_too_long(message: str) -> bool:
    return _TOO_LONG.search(message) is not None
