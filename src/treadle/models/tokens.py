"""Token counts without a network: exact for the encodings that we ship, estimated for models that have neither."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from treadle.errors import InvalidRequest
from treadle.vocabularies import count_tokens, load_encoding

if TYPE_CHECKING:
    from tiktoken import Encoding

ENCODINGS = ("o200k_base", "cl100k_base")
FAMILIES: dict[str, str] = dict.fromkeys(
    (
        "llama",
        "meta-llama",
        "codellama",
        "mistral",
        "mixtral",
        "ministral",
        "codestral",
        "claude",
        "gemma",
        "qwen",
        "phi",
        "deepseek",
    ),
    "cl100k_base",
)
"""What model names begin with, and the encoding that is closest in size. Settings add to it."""

_O200K = re.compile(r"gpt-(?:4o|4\.\d|[5-9]|oss)|chatgpt-4o|^o\d")
_CL100K = re.compile(r"gpt-(?:4|3\.5)|text-embedding")

_WIDE = re.compile(r"[\u0590-\u1fff\u2e80-\U0003ffff]")
"""Scripts in which a token is about one character."""
_INDENT = re.compile(r"(?<= ) +")
_MARKS = "{}()[]<>=;_\"':/\\|*#`"
_PER_WIDE, _PER_MARK, _PER_OTHER = 0.8, 0.5, 0.25
"""Tokens per character, fitted to both encodings on prose, code, JSON and Chinese."""


def estimate(text: str) -> int:
    """About how many tokens a text has under an unknown encoding: four characters each, but one mark of code in two,
    nearly each character of a script like Chinese, and none for indentation. Within a quarter for most texts."""
    wide = 0 if text.isascii() else len(_WIDE.findall(text))
    marks = sum(map(text.count, _MARKS))
    other = len(_INDENT.sub("", text)) - wide - marks
    return round(wide * _PER_WIDE + marks * _PER_MARK + other * _PER_OTHER + 0.49)


class Tokens:
    """A TokenCounter. Vocabularies are loaded when first needed; safe to use from several threads.

    `encoding` is the server's default and `families` are further beginnings of model names; both name ENCODINGS.
    """

    def __init__(self, encoding: str | None = None, families: Mapping[str, str] | None = None) -> None:
        self._default = encoding or None
        known = FAMILIES | {name.lower(): found for name, found in (families or {}).items()}
        # The longest beginning that fits says most about a model.
        self._families = sorted(known.items(), key=lambda entry: -len(entry[0]))
        self._loaded: dict[str, Encoding] = {}
        self._lock = threading.Lock()

    def check(self, encoding: str | None) -> None:
        if encoding is not None and encoding not in ENCODINGS:
            raise InvalidRequest(
                f"Unknown encoding '{encoding[:64]}': this server has {' and '.join(ENCODINGS)}.",
                param="tokenizer_encoding",
            )

    def encoding_name(self, model: str) -> str | None:
        """The encoding that fits `model`, which may carry a provider: `azure/gpt-4o`, `ft:gpt-4o:org`.

        The server's default, if it has one; exact for OpenAI's models; by family; None: it is not known.
        """
        if self._default is not None:
            return self._default
        name = model.rsplit("/", 1)[-1].lower().removeprefix("ft:")
        if _O200K.search(name):
            return "o200k_base"
        if _CL100K.search(name):
            return "cl100k_base"
        return next((found for beginning, found in self._families if name.startswith(beginning)), None)

    def count(self, text: str, model: str = "", encoding: str | None = None) -> int:
        """Tokens of `text`; markers like `<|endoftext|>` count as the text they are. About 10 MB/s.

        The first call for an encoding takes about 0.3 s; `load` does that part ahead of time.
        """
        name = encoding or self.encoding_name(model)
        return estimate(text) if name is None else count_tokens(self._encoding(name), text)

    def load(self, model: str = "", encoding: str | None = None) -> None:
        """Loads what `count` needs for `model`, for a thread to do before the first request."""
        if (name := encoding or self.encoding_name(model)) is not None:
            self._encoding(name)

    def _encoding(self, name: str) -> Encoding:
        encoding = self._loaded.get(name)
        if encoding is None:
            with self._lock:
                encoding = self._loaded.get(name)
                if encoding is None:
                    encoding = self._loaded[name] = load_encoding(name)
        return encoding
