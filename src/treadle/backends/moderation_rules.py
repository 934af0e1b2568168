"""A moderator that works without a network: words, patterns, keys and personal data."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial

from treadle import ports
from treadle.ports import Verdict

MODEL = "treadle-rules"

AT_ONCE = 20_000
"""Characters up to which a text is read in the event loop; longer ones are read in a thread."""

_SECRETS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"sk-(?<!\wsk-)[A-Za-z0-9_-]{20}",
    r"AKIA(?<!\wAKIA)[A-Z0-9]{16}\b",
    r"ASIA(?<!\wASIA)[A-Z0-9]{16}\b",
    r"gh[pousr]_(?<!\wgh._)[A-Za-z0-9]{36}",
    r"github_pat_[A-Za-z0-9_]{40}",
    r"glpat-[A-Za-z0-9_-]{20}",
    r"xox[abprs]-[A-Za-z0-9-]{10}",
    r"AIza(?<!\wAIza)[A-Za-z0-9_-]{35}",
    r"eyJ(?<!\weyJ)[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10}",
)
"""Private keys, and the tokens of OpenAI, AWS, GitHub, GitLab, Slack and Google; signed web tokens. Each begins with
plain letters, which are found thirty times as fast as a boundary of words; what stands before is looked at then."""

_DIGIT = re.compile(r"\d")
_MAIL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_SOCIAL = re.compile(r"\b(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}\b")
_CARD = re.compile(r"(?<![\d-])(?:\d[ -]?){12,18}\d(?![\d-])")
_ACCOUNT = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")


class RuleModerator(ports.Moderator):
    """ValueError for a pattern that is no regular expression. Patterns see no difference between capitals and others.

    `words` are whole ones, or several with spaces between them. Personal data are mail addresses, numbers of payment
    cards and bank accounts whose check digits are right, and US social security numbers.
    """

    def __init__(
        self, *, words: Sequence[str] = (), patterns: Sequence[str] = (), secrets: bool = False, personal: bool = False
    ) -> None:
        self._rules: dict[str, Callable[[str], bool]] = {}
        if given := [word for word in words if word.strip()]:
            self._rules["words"] = _Words(given).found
        if patterns:
            self._rules["patterns"] = partial(_any, [_compiled(pattern) for pattern in patterns])
        if secrets:
            self._rules["secrets"] = partial(_any, [re.compile(pattern) for pattern in _SECRETS])
        if personal:
            self._rules["personal_data"] = _is_personal

    @property
    def idle(self) -> bool:
        """There is nothing to look for."""
        return not self._rules

    async def judge(self, text: str, model: str = "") -> Verdict:
        return self._judge(text) if len(text) <= AT_ONCE else await asyncio.to_thread(self._judge, text)

    def _judge(self, text: str) -> Verdict:
        found = {name: rule(text) for name, rule in self._rules.items()}
        return Verdict(any(found.values()), found, {name: float(there) for name, there in found.items()}, MODEL)


class _Words:
    """`\\b` would not do: a word may begin or end with a sign."""

    def __init__(self, words: Sequence[str]) -> None:
        parts = [word.split() for word in words]
        self._firsts = [part[0].lower() for part in parts]
        spaced = (r"\s+".join(map(re.escape, part)) for part in parts)
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(spaced)})(?!\w)", re.IGNORECASE)

    def found(self, text: str) -> bool:
        # In ASCII there are no capitals but the plain ones, so most texts need no pattern.
        if text.isascii():
            small = text.lower()
            if not any(first in small for first in self._firsts):
                return False
        return self._pattern.search(text) is not None


def _any(rules: Sequence[re.Pattern[str]], text: str) -> bool:
    return any(rule.search(text) for rule in rules)


def _is_personal(text: str) -> bool:
    if "@" in text and _MAIL.search(text):
        return True
    return _DIGIT.search(text) is not None and (_SOCIAL.search(text) is not None or _holds_number(text))


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


def _holds_number(text: str) -> bool:
    cards = (re.sub(r"\D", "", found.group()) for found in _CARD.finditer(text))
    accounts = (found.group().replace(" ", "") for found in _ACCOUNT.finditer(text))
    return any(map(_is_card, cards)) or any(map(_is_account, accounts))


def _is_card(digits: str) -> bool:
    """By the check digit of ISO/IEC 7812."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0 and len(set(digits)) > 1


def _is_account(account: str) -> bool:
    """By the check digits of ISO 13616."""
    return 15 <= len(account) <= 34 and int("".join(str(int(sign, 36)) for sign in account[4:] + account[:4])) % 97 == 1
