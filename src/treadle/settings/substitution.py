"""`${env.NAME}` in the configuration file: the variable, with a default, or something else when it is set."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

_ANY = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_KNOWN = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)(?::([=+])(.*))?", re.DOTALL)


class Substituted(msgspec.Struct, frozen=True):
    """`whole` says that the text was nothing but one substitution, so that it may stand for a number too."""

    text: str
    whole: bool
    faults: tuple[str, ...] = ()


def substitute(text: str, environ: Mapping[str, str]) -> Substituted:
    """Replaces every `${env.…}` in `text`. `$${` is a literal `${`.

    `${env.NAME}` needs NAME to be set (it may be empty); `${env.NAME:=default}` gives the default when NAME is unset or
    empty; `${env.NAME:+value}` gives the value when NAME is set and not empty, else nothing.
    """
    faults: list[str] = []

    def replace(found: re.Match[str]) -> str:
        if found.group() == "$${":
            return "${"
        known = _KNOWN.fullmatch(found.group(1)) if found.group(2) else None
        if known is None:
            faults.append(
                f"`{found.group()}` is not understood; write ${{env.NAME}}, ${{env.NAME:=default}} or "
                "${env.NAME:+value}, and $${ for a literal ${"
            )
            return ""
        name, sign, rest = known.groups()
        value = environ.get(name)
        if sign == "=":
            return value or rest
        if sign == "+":
            return rest if value else ""
        if value is None:
            faults.append(f"the environment variable {name} is not set")
        return value or ""

    result = _ANY.sub(replace, text)
    only = _ANY.fullmatch(text)
    return Substituted(result, only is not None and only.group() != "$${", tuple(faults))
