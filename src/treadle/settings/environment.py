"""Settings from environment variables: `TREADLE_SERVER__PORT` is `server.port`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args, get_origin

import msgspec

from treadle.settings.build import inline, strip, struct_class
from treadle.settings.remote import KEY_VARIABLE, URL_VARIABLE
from treadle.settings.schema import Settings
from treadle.settings.tree import Branch, Fault, Origin, Value, did_you_mean, put

PREFIX = "TREADLE_"
CONFIG_VARIABLE = "TREADLE_CONFIG"
_NOT_SETTINGS = (CONFIG_VARIABLE, URL_VARIABLE, KEY_VARIABLE)


def apply_environment(tree: Branch, environ: Mapping[str, str]) -> tuple[list[Fault], list[str]]:
    """Puts every `TREADLE_…` variable into the tree. The faults, and the variables that are no setting.

    A variable without a double underscore may belong to something else (Kubernetes sets TREADLE_PORT and
    TREADLE_SERVICE_HOST for a service of that name), so an unknown one is not a fault. One with it is meant for us if
    it begins like a section (TREADLE_SERVR__PORT).
    """
    faults: list[Fault] = []
    unused: list[str] = []
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in _NOT_SETTINGS:
            continue
        keys, problem = _keys(name.removeprefix(PREFIX).lower().split("__"), tree)
        if len(keys) == 1 and not _is_meant(name, keys[0], problem):
            unused.append(name)
        elif problem is not None:
            faults.append(Fault(".".join(keys), problem, Origin("environment", name)))
        else:
            text = environ[name]
            put(tree, keys, Value(text, Origin("environment", name), text=text, typed=False))
    return faults, unused


def variable_of(path: str) -> str:
    """The variable that sets the setting at a dotted path."""
    return PREFIX + path.upper().replace("-", "_").replace(".", "__")


def _keys(parts: list[str], tree: Branch) -> tuple[list[str], str | None]:
    """The path that the parts of a variable's name stand for, and what is wrong with it.

    A name cannot hold the capitals or dashes of a section's name, so those are found by likeness.
    """
    keys: list[str] = []
    kind: object = Settings
    here: object = tree
    for part in parts:
        section = struct_class(kind)
        if section is not None:
            fields = {field.name: field.type for field in msgspec.structs.fields(section)}
            if part not in fields or inline(fields[part]):
                if any(map(inline, fields.values())):
                    # A plug-in's own setting; its class, which knows it, is not loaded yet.
                    return [*keys, _alike(part, here), *parts[len(keys) + 1 :]], None
                return [*keys, part], f"is not a known setting{did_you_mean(part, fields)}"
            kind, key = strip(fields[part]), part
        elif get_origin(kind) is dict:
            kind, key = get_args(kind)[1], _alike(part, here)
        else:
            return [*keys, part], f"is not a known setting; `{'.'.join(keys)}` has nothing below it"
        keys.append(key)
        here = here.get(key) if isinstance(here, dict) else None
    return keys, None


def _alike(part: str, branch: object) -> str:
    names = branch if isinstance(branch, dict) else {}
    return next((name for name in names if name.lower().replace("-", "_") == part), part)


def _is_meant(name: str, first: str, problem: str | None) -> bool:
    """A variable whose name ends at, or fails in, its first part is ours: a setting, or a near miss of a section."""
    if problem is None:
        return _is_leaf(first)
    sections = [field.name for field in msgspec.structs.fields(Settings) if not _is_leaf(field.name)]
    return "__" in name and bool(did_you_mean(first, sections))


def _is_leaf(name: str) -> bool:
    """A setting that one text can give, other than a section."""
    kind = next(strip(field.type) for field in msgspec.structs.fields(Settings) if field.name == name)
    values = get_args(kind)[1] if get_origin(kind) is dict else None
    return struct_class(kind) is None and struct_class(values) is None
