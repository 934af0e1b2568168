"""The vocabularies that this package carries: their checksums, and tiktoken's encodings made from them."""

from __future__ import annotations

import base64
import hashlib
import lzma
import re
from importlib.resources import files
from typing import TYPE_CHECKING

from treadle.errors import Internal

if TYPE_CHECKING:
    from tiktoken import Encoding

VOCABULARIES = {
    "o200k_base.tiktoken": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base.tiktoken": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "bert_uncased.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
"""The vocabularies in `treadle/data`, by the sha256 of their unpacked bytes."""

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

# tiktoken's regular expressions overflow their stack on runs of about a million blanks, so long texts are
# counted in blocks. Both patterns always break between a letter or digit and one of these marks (a word takes
# a mark only at its front), so a cut there changes no count.
_SEAM = re.compile(r"""(?<=[^\W_])(?=[ \t\r\n.,;:!?()\[\]{}"<>=+*/\\|，。、；：！？])""")
_BLOCK = 50_000
"""Characters. A run of this length without a seam is cut all the same and may be off by a token."""


def vocabulary(name: str) -> bytes:
    """The unpacked bytes of a vocabulary of ours. Internal if our installation is damaged."""
    packed = files("treadle").joinpath("data", f"{name}.xz")
    try:
        content = lzma.decompress(packed.read_bytes())
    except (OSError, lzma.LZMAError) as fault:
        raise Internal(f"The data file {name}.xz of treadle cannot be read; install treadle again.") from fault
    if hashlib.sha256(content).hexdigest() != VOCABULARIES[name]:
        raise Internal(f"The data file {name}.xz of treadle was altered; install treadle again.")
    return content


def load_encoding(name: str) -> Encoding:
    """The encoding, complete and offline. Takes a third of a second. Internal if our installation is damaged."""
    # Deferred: with a vocabulary it weighs 25 to 50 MB, and many servers never count.
    from tiktoken import Encoding

    lines = (line.split() for line in vocabulary(f"{name}.tiktoken").splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    # No special tokens: in a user's text they are ordinary text.
    encoding = Encoding(name, pat_str="|".join(_PATTERNS[name]), mergeable_ranks=ranks, special_tokens={})
    # The native core keeps its own copy; tiktoken needs this one only for pickling, and it weighs up to 27 MB.
    encoding._mergeable_ranks = {}
    return encoding


def blocks(text: str, size: int = _BLOCK) -> list[str]:
    """`text` in pieces of at most `size` characters whose counts add up to the whole's."""
    if len(text) <= size:
        return [text]
    found = []
    start = 0
    while len(text) - start > size:
        end = start + size
        # Most texts have a seam close by; only odd ones need a look at the whole block.
        for back in (min(1_000, size - 1), size - 1):
            seams = [seam.start() for seam in _SEAM.finditer(text, end - back, end)]
            if seams:
                end = seams[-1]
                break
        found.append(text[start:end])
        start = end
    found.append(text[start:])
    return found


def count_tokens(encoding: Encoding, text: str) -> int:
    """Tokens of `text`; markers like `<|endoftext|>` count as the text they are. About 10 MB/s."""
    return sum(len(encoding.encode_ordinary(block)) for block in blocks(text))
