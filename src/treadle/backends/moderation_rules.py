"""A moderator that works without a network: words, patterns, keys and personal data."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from treadle import ports
from treadle.ports import Verdict

MODEL = "treadle-rules"

AT_ONCE = 20_000
"""Characters up to which a text is read in the event loop; longer ones are read in a thread."""

_SECRETS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    r"\bsk-[A-Za-z0-9_-]{20,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{36,}",
    r"\bgithub_pat_[A-Za-z0-9_]{40,}",
    r"\bglpat-[A-Za-z0-9_-]{20,}",
    r"\bxox[abprs]-[A-Za-z0-9-]{10,}",
    r"\bAIza[A-Za-z0-9_-]{35}\b",
    r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
)
"""Private keys, and the tokens of OpenAI, AWS, GitHub, GitLab, Slack and Google; signed web tokens."""

_MAIL = r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"
_SOCIAL = r"\b(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}\b"
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
        self._rules: dict[str, list[re.Pattern[str]]] = {}
        if words:
            self._rules["words"] = [_of_words(words)]
        if patterns:
            self._rules["patterns"] = [_compiled(pattern) for pattern in patterns]
        if secrets:
            self._rules["secrets"] = [re.compile(pattern) for pattern in _SECRETS]
        if personal:
            self._rules["personal_data"] = [re.compile(_MAIL), re.compile(_SOCIAL)]

    @property
    def idle(self) -> bool:
        """There is nothing to look for."""
        return not self._rules

    async def judge(self, text: str, model: str = "") -> Verdict:
        return self._judge(text) if len(text) <= AT_ONCE else await asyncio.to_thread(self._judge, text)

    def _judge(self, text: str) -> Verdict:
        found = {name: any(rule.search(text) for rule in rules) for name, rules in self._rules.items()}
        if found.get("personal_data") is False:
            found["personal_data"] = _holds_number(text)
        scores = {name: float(there) for name, there in found.items()}
        return Verdict(any(found.values()), found, scores, MODEL)


def _of_words(words: Sequence[str]) -> re.Pattern[str]:
    """`\\b` would not do: a word may begin or end with a sign."""
    spaced = (r"\s+".join(map(re.escape, word.split())) for word in words if word.strip())
    return re.compile(rf"(?<!\w)(?:{'|'.join(spaced)})(?!\w)", re.IGNORECASE)


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
