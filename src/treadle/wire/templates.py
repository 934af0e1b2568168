"""Texts with `{placeholders}` that an operator writes: checked when the server starts, filled by plain replacement.

Nothing is looked up or formatted (`{a.b}`, `{a!r}` and `{a:10}` are refused), and what is put in is not read again, so
neither a template nor a value can reach anything (bug cases, "also reported": template injection).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_PLACEHOLDER = re.compile(r"\{([^\W\d][^{}\n]*|\s+[^\W\d][^{}\n]*)\}")
"""A brace before anything but a name is a brace."""


def template_fault(template: str, allowed: Collection[str], needed: Collection[str] = ()) -> str | None:
    """What is wrong with a template, as the end of a sentence that begins with its name; None if nothing is."""
    used = _PLACEHOLDER.findall(template)
    for name in used:
        if name not in allowed:
            known = ", ".join(f"{{{one}}}" for one in sorted(allowed)) or "none"
            return f"holds the unknown placeholder `{{{name[:40]}}}`; there are {known}, each without any additions"
    for name in needed:
        if name not in used:
            return f"must hold the placeholder `{{{name}}}`"
    return None


def uses(template: str, name: str) -> bool:
    return name in _PLACEHOLDER.findall(template)


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its placeholders replaced; one that `values` does not have stays as it is."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), template)
