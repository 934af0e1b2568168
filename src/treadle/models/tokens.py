"""Exact token counts without a network: OpenAI's two current encodings, from vocabularies that we ship."""

from __future__ import annotations

import base64
import re
import threading
from typing import TYPE_CHECKING

from treadle.models.weights import vocabulary

if TYPE_CHECKING:
    from tiktoken import Encoding

# The splitting patterns belong to the encodings; OpenAI publishes them with tiktoken (see NOTICE).
_PATTERNS = {
    "o200k_base": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ),
    "cl100k_base": (
        r"'(?i:[sdmt]|ll|ve|re)",
        r"[^\r\n\p{L}\p{N}]?+\p{L}++",
        r"\p{N}{1,3}+",
        r" ?[^\s\p{L}\p{N}]++[\r\n]*+",
        r"\s++$",
        r"\s*[\r\n]",
        r"\s+(?!\S)",
        r"\s",
    ),
}

_O200K = re.compile(r"gpt-(?:4o|4\.\d|[5-9]|oss)|chatgpt-4o|^o\d")
_CL100K = re.compile(
    r"gpt-(?:4|3\.5)|text-embedding|llama|mi[sx]tral|ministral|codestral|claude|gemma|qwen|deepseek|\bphi[-\d]"
)

# tiktoken's regular expressions overflow their stack on runs of about a million blanks, so long texts are
# counted in blocks. Both patterns always break between a letter or digit and one of these marks (a word takes
# a mark only at its front), so a cut there changes no count.
_SEAM = re.compile(r"""(?<=[^\W_])(?=[ \t\r\n.,;:!?()\[\]{}"<>=+*/\\|，。、；：！？])""")
_BLOCK = 50_000
"""Characters. A run of this length without a seam is cut all the same and may be off by a token."""


def encoding_name(model: str) -> str:
    """The encoding that fits `model`, which may carry a provider: `azure/gpt-4o`, `ft:gpt-4o:org`.

    Exact for OpenAI's models; for other families the closest in size. Unknown models get the newest.
    """
    name = model.rsplit("/", 1)[-1].lower().removeprefix("ft:")
    if _O200K.search(name):
        return "o200k_base"
    return "cl100k_base" if _CL100K.search(name) else "o200k_base"


def _load(name: str) -> Encoding:
    # Deferred: tiktoken and a vocabulary take a third of a second and 25 to 50 MB, and many servers never count.
    from tiktoken import Encoding

    lines = (line.split() for line in vocabulary(f"{name}.tiktoken").splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    # No special tokens: in a user's text they are ordinary text.
    encoding = Encoding(name, pat_str="|".join(_PATTERNS[name]), mergeable_ranks=ranks, special_tokens={})
    # The native core keeps its own copy; tiktoken needs this one only for pickling, and it weighs up to 27 MB.
    encoding._mergeable_ranks = {}
    return encoding


def _blocks(text: str, size: int = _BLOCK) -> list[str]:
    """`text` in pieces of at most `size` characters whose counts add up to the whole's."""
    if len(text) <= size:
        return [text]
    blocks = []
    start = 0
    while len(text) - start > size:
        end = start + size
        # Most texts have a seam close by; only odd ones need a look at the whole block.
        for back in (min(1_000, size - 1), size - 1):
            seams = [seam.start() for seam in _SEAM.finditer(text, end - back, end)]
            if seams:
                end = seams[-1]
                break
        blocks.append(text[start:end])
        start = end
    blocks.append(text[start:])
    return blocks


class Tokens:
    """A TokenCounter. Vocabularies are loaded when first needed; safe to use from several threads."""

    def __init__(self) -> None:
        self._loaded: dict[str, Encoding] = {}
        self._lock = threading.Lock()

    def count(self, text: str, model: str = "") -> int:
        """Tokens of `text`; markers like `<|endoftext|>` count as the text they are. About 10 MB/s.

        The first call for an encoding takes about 0.3 s; `load` does that part ahead of time.
        """
        encoding = self._encoding(encoding_name(model))
        return sum(len(encoding.encode_ordinary(block)) for block in _blocks(text))

    def load(self, model: str = "") -> None:
        """Loads what `count` needs for `model`, for a thread to do before the first request."""
        self._encoding(encoding_name(model))

    def _encoding(self, name: str) -> Encoding:
        encoding = self._loaded.get(name)
        if encoding is None:
            with self._lock:
                encoding = self._loaded.get(name)
                if encoding is None:
                    encoding = self._loaded[name] = _load(name)
        return encoding
