"""Every setting with its value, where that came from and what it means; secrets hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args, get_origin
from urllib.parse import urlsplit

import msgspec

from treadle.settings.build import inline, metas, secret, strip, struct_class
from treadle.settings.load import Loaded
from treadle.settings.plugins import secret_name
from treadle.settings.schema import Settings
from treadle.settings.tree import Origin, join

HIDDEN = "***"

_PASSWORD = re.compile(r"([?&](?:ssl)?password=)[^&#]+", re.IGNORECASE)


class Line(msgspec.Struct, frozen=True):
    """One setting. `value` is its JSON, fit to be shown."""

    path: str
    value: str
    origin: Origin
    meaning: str


class SettingDoc(msgspec.Struct, frozen=True):
    """A setting as it is documented. `path` has `<name>` where users choose the name."""

    path: str
    type: object
    default: object
    meaning: str


def explain(loaded: Loaded) -> list[Line]:
    """All settings of what was loaded, in the order of the schema."""
    return list(_lines(loaded, loaded.settings, ""))


def documented() -> list[SettingDoc]:
    """Every setting there is."""
    return list(_docs(Settings, ""))


def meaning(kind: object) -> str:
    return next((meta.description for meta in metas(kind) if meta.description), "")


def shown(data: object, *, hide: bool = False) -> str:
    """A value as JSON; passwords inside addresses are hidden, and all of it if it is a secret that is set."""
    if hide and data:
        return HIDDEN if not isinstance(data, dict) else _json(dict.fromkeys(data, HIDDEN))
    return _json(_without_password(data) if isinstance(data, str) else data)


def _lines(loaded: Loaded, section: msgspec.Struct, path: str, *, foreign: bool = False) -> Iterator[Line]:
    """`foreign`: the settings are a plug-in's, whose author may not have marked what is secret."""
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        apart = inline(field.type)
        where = path if apart else join(path, field.encode_name)
        if isinstance(value, msgspec.Struct):
            yield from _lines(loaded, value, where, foreign=foreign)
        elif struct_class(_values_of(field.type)) is not None:
            for name, below in value.items():
                yield from _lines(loaded, below, join(where, name), foreign=foreign or apart)
        elif value is not None:
            origin = loaded.origins.get(where) or _first_below(loaded, where)
            hide = secret(field.type) or (foreign and secret_name(field.name))
            yield Line(where, shown(value, hide=hide), origin, meaning(field.type))


def _docs(section: type[msgspec.Struct], path: str) -> Iterator[SettingDoc]:
    for field in msgspec.structs.fields(section):
        if inline(field.type):
            continue
        where = join(path, field.name)
        below = struct_class(field.type)
        each = struct_class(_values_of(field.type))
        if below is not None:
            yield from _docs(below, where)
        elif each is not None:
            yield from _docs(each, join(where, "<name>"))
        else:
            default = field.default_factory if field.default is msgspec.NODEFAULT else field.default
            yield SettingDoc(where, strip(field.type), default, meaning(field.type))


def _values_of(kind: object) -> object:
    bare = strip(kind)
    return get_args(bare)[1] if get_origin(bare) is dict else None


def _first_below(loaded: Loaded, path: str) -> Origin:
    below = (origin for name, origin in loaded.origins.items() if name.startswith(f"{path}."))
    return next(below, Origin("default"))


def _without_password(text: str) -> str:
    try:
        password = urlsplit(text).password if "://" in text else None
    except ValueError:
        return text
    text = text.replace(f":{password}@", f":{HIDDEN}@") if password else text
    return _PASSWORD.sub(rf"\1{HIDDEN}", text)


def _json(data: object) -> str:
    return msgspec.json.encode(data).decode()
