"""Tells text from other bytes, and in which encoding it is."""

from __future__ import annotations

import codecs
import contextlib
import importlib.util
import re

from treadle.errors import UnsupportedFile
from treadle.retrieval.extract.faults import EXTRA

SAMPLE = 64 * 1024
"""Bytes at the start by which text is told from other bytes."""
_GUESS = 32 * 1024
"""Bytes by which an old encoding is guessed."""

_STRAY = 4

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Tab, line feed, form feed, carriage return and backspace occur in text, and escape where terminals are recorded.
_CONTROLS = re.compile(rb"[\x00-\x07\x0b\x0e-\x1a\x1c-\x1f]")
_CONTROL_CHARACTERS = re.compile("[\x00-\x07\x0b\x0e-\x1a\x1c-\x1f\x80-\x9f\ufffe\uffff]")
_HIGH = re.compile(rb"[\x80-\xff]")
_HIGH_ROW = re.compile(rb"[\x80-\xff]+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_KANA = re.compile("[\u3041-\u30fe]")
_HALF_KANA = re.compile("[\uff61-\uff9f]")
_CYRILLIC = re.compile("[А-яЁё]")
_CASES = re.compile("[а-яё][А-ЯЁ]")
# What Western European texts hold besides ASCII.
_WESTERN = frozenset("àâäáãåæçèéêëìíîïñòóôöõøœùúûüÿßÀÂÄÁÃÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÖÕØŒÙÚÛÜ«»‘’“”„‚–—…•€£©®°§¡¿·\xa0½¼²³ºª")
_WINDOWS = {"iso-8859-1": "cp1252", "latin1": "cp1252", "us-ascii": "cp1252", "shift_jis": "cp932", "gb2312": "gb18030"}
"""What is meant by some names, as browsers take them."""
_LATIN_GUESS = re.compile(r"cp125[0247]|iso8859|latin|mac_|cp(?:437|8\d\d)|hp_roman|cp(?:37|500|1140)", re.IGNORECASE)


def encoding_of(data: bytes, *, whole: bool = True) -> str | None:
    """The encoding of `data`, or None if that is no text. `whole`: it is not cut off in the middle of a character."""
    for bom, name in _BOMS:
        if data.startswith(bom):
            return name
    sample = data[:SAMPLE]
    whole = whole and len(data) <= SAMPLE
    controls = len(_CONTROLS.findall(sample))
    # Some stray ones are dropped; formats of programs have more of them, above all at the start.
    are_stray = controls <= max(_STRAY, len(sample) // 100) and len(_CONTROLS.findall(sample[:256])) <= _STRAY
    if are_stray and _decodes(sample, "utf-8", whole):
        # ISO 2022 is seven bits wide and hides behind escapes.
        return "iso2022_jp" if b"\x1b$B" in sample and _decodes(sample, "iso2022_jp", whole) else "utf-8"
    wide = _wide(sample)
    if wide or controls:
        return wide
    return _old(sample)


def decoded(data: bytes, *, whole: bool = True, declared: str = "") -> str:
    """`data` as text with plain line ends; what does not fit its encoding becomes U+FFFD. UnsupportedFile if it is no
    text.

    `declared`: what the document says of itself; believed unless it is UTF-8.
    """
    return plain_lines(_decoded(data, whole=whole, declared=declared)).removeprefix("\ufeff")


def plain_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _decoded(data: bytes, *, whole: bool, declared: str) -> str:
    encoding = encoding_of(data, whole=whole)
    if declared and encoding not in ("utf-8", "utf-8-sig", "utf-16", "utf-32", None):
        with contextlib.suppress(LookupError, UnicodeDecodeError):
            return data.decode(_WINDOWS.get(declared.lower(), declared))
    if encoding is None:
        raise UnsupportedFile("Files of this type cannot be read: it is not text.")
    if encoding == "utf-8" and not _decodes(data, encoding, whole):
        # The start was UTF-8 or plain ASCII; what comes later decides, unless it is only a broken character.
        first = _HIGH.search(data)
        late = data[max(0, first.start() - 100) :][:SAMPLE] if first else data
        encoding = "utf-8" if _mostly_utf8(late) else (_old(late) or "utf-8")
    return data.decode(encoding, errors="replace")


def _decodes(data: bytes, encoding: str, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(data, whole)
    except UnicodeDecodeError:
        return False
    return True


def _mostly_utf8(data: bytes) -> bool:
    text = data.decode(errors="replace")
    return text.count("\ufffd") * 10 <= len(_HIGH.findall(data))


def _wide(sample: bytes) -> str | None:
    """UTF-16 without a mark: every other byte of Western text is zero."""
    half = len(sample) // 2
    if half < 2:
        return None
    for name, zeros, others in (("utf-16-le", sample[1::2], sample[::2]), ("utf-16-be", sample[::2], sample[1::2])):
        if zeros.count(0) > half * 0.4 and others.count(0) < half * 0.05 and _decodes(sample, name, False):
            text = sample[: half * 2].decode(name, errors="replace")
            if len(_CONTROL_CHARACTERS.findall(text)) <= len(text) // 100:
                return name
    return None


def _old(sample: bytes) -> str | None:
    """One of the encodings before Unicode."""
    high = _HIGH.search(sample)
    start = max(0, high.start() - _GUESS // 2) if high else 0
    part = sample[start : start + _GUESS]
    guess = _by_script(part) or _guessed(part)
    is_western = set(part.decode("cp1252", errors="replace")) - {chr(code) for code in range(128)} <= _WESTERN
    # Short Western texts also make sense to the guesser in the encodings of other Latin alphabets, and those with few
    # accents in any. In other scripts such bytes come in rows.
    rows = _HIGH_ROW.findall(part)
    is_sparse = sum(map(len, rows)) < 1.3 * len(rows)
    if is_western and (guess is None or is_sparse or _LATIN_GUESS.search(guess)):
        return "cp1252"
    if guess is None:
        return None
    text = part.decode(guess, errors="replace")
    return guess if len(_CONTROL_CHARACTERS.findall(text)) + text.count("\ufffd") <= len(text) // 50 else None


def _by_script(part: bytes) -> str | None:
    """Encodings that betray themselves by the look of what they decode to, also in texts too short for statistics."""
    for name in ("cp932", "euc_jp"):
        text = _strictly(part, name)
        others = len(_NOT_ASCII.findall(text))
        if others and len(_KANA.findall(text)) * 5 >= others and not _HALF_KANA.search(text):
            return name
    for name in ("cp1251", "koi8_r"):
        text = _strictly(part, name)
        letters = len(_CYRILLIC.findall(text))
        # In the wrong one of the two, and in texts of other scripts, capitals stand in the middle of words.
        if (
            letters >= 8
            and letters * 20 >= 19 * len(_NOT_ASCII.findall(text))
            and len(_CASES.findall(text)) * 50 <= letters
        ):
            return name
    return None


def _strictly(part: bytes, encoding: str) -> str:
    """The text, or nothing if it has bytes that the encoding does not know."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(part, False)
    except UnicodeDecodeError:
        return ""


def _guessed(part: bytes) -> str | None:
    if importlib.util.find_spec("charset_normalizer") is None:
        if len(_HIGH.findall(part)) * 5 <= len(part):
            return None
        raise UnsupportedFile(
            "Text that is not UTF-8 needs the Python package charset-normalizer, which is not installed on this server "
            f"(extra `{EXTRA}`: pip install 'treadle[{EXTRA}]')."
        )
    from charset_normalizer import from_bytes

    best = from_bytes(part).best()
    # Those of Unicode were tried before; here they would be a guess that any bytes allow.
    return best.encoding if best and not best.encoding.startswith("utf") else None
