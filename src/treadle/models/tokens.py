"""Exact token counts without a network: OpenAI's two current encodings, from vocabularies that we ship."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from treadle.vocabularies import count_tokens, load_encoding

if TYPE_CHECKING:
    from tiktoken import Encoding

_O200K = re.compile(r"gpt-(?:4o|4\.\d|[5-9]|oss)|chatgpt-4o|^o\d")
_CL100K = re.compile(
    r"gpt-(?:4|3\.5)|text-embedding|llama|mi[sx]tral|ministral|codestral|claude|gemma|qwen|deepseek|\bphi[-\d]"
)


def encoding_name(model: str) -> str:
    """The encoding that fits `model`, which may carry a provider: `azure/gpt-4o`, `ft:gpt-4o:org`.

    Exact for OpenAI's models; for other families the closest in size. Unknown models get the newest.
    """
    name = model.rsplit("/", 1)[-1].lower().removeprefix("ft:")
    if _O200K.search(name):
        return "o200k_base"
    return "cl100k_base" if _CL100K.search(name) else "o200k_base"


class Tokens:
    """A TokenCounter. Vocabularies are loaded when first needed; safe to use from several threads."""

    def __init__(self) -> None:
        self._loaded: dict[str, Encoding] = {}
        self._lock = threading.Lock()

    def count(self, text: str, model: str = "") -> int:
        """Tokens of `text`; markers like `<|endoftext|>` count as the text they are. About 10 MB/s.

        The first call for an encoding takes about 0.3 s; `load` does that part ahead of time.
        """
        return count_tokens(self._encoding(encoding_name(model)), text)

    def load(self, model: str = "") -> None:
        """Loads what `count` needs for `model`, for a thread to do before the first request."""
        self._encoding(encoding_name(model))

    def _encoding(self, name: str) -> Encoding:
        encoding = self._loaded.get(name)
        if encoding is None:
            with self._lock:
                encoding = self._loaded.get(name)
                if encoding is None:
                    encoding = self._loaded[name] = load_encoding(name)
        return encoding
