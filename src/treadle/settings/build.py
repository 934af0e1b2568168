"""Gives a tree its types: settings out of what was written, one fault for each thing that does not fit."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from treadle.settings.tree import Branch, Fault, Origin, Value, did_you_mean, join, origin_of, plain

S = TypeVar("S", bound=msgspec.Struct)
_WORDS = {"yes": True, "on": True, "true": True, "1": True, "no": False, "off": False, "false": False, "0": False}
_DEFAULT = Origin("default")


class Unfit(Exception):
    """A value does not fit its setting."""


class Builder:
    """Builds structs from trees. `origins` names where each leaf came from; `faults` grows as faults are met."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.origins: dict[str, Origin] = {}

    def struct(self, kind: type[S], node: Value | Branch | None, path: str) -> S:
        """A struct from a branch; whatever is absent, null or faulty has its default."""
        branch = self._branch(node, path)
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for name in branch.keys() - fields.keys():
            message = f"is not a known setting{did_you_mean(name, fields)}"
            self.faults.append(Fault(join(path, name), message, origin_of(branch[name])))
        values: dict[str, object] = {}
        for name, field in fields.items():
            below = branch.get(name)
            where = join(path, name)
            bare = strip(field.type)
            section = struct_class(bare)
            if section is not None:
                values[field.name] = self.struct(section, below, where)
            elif get_origin(bare) is dict:
                values[field.name] = self._mapping(get_args(bare)[1], below, where, secret(field.type))
            else:
                self._leaf(values, field.name, field.type, below, where)
            if field.required and field.name not in values:
                if not any(fault.path == where for fault in self.faults):
                    self.faults.append(Fault(where, "is needed", origin_of(branch)))
                values[field.name] = None
        return kind(**values)

    def _mapping(self, kind: object, node: Value | Branch | None, path: str, hide: bool) -> dict[str, object]:
        if isinstance(node, Value) and not node.typed:
            node = self._branch_from_text(node) if node.text else None
        values: dict[str, object] = {}
        for name, below in self._branch(node, path).items():
            where = join(path, name)
            section = struct_class(kind)
            if section is not None:
                values[name] = self.struct(section, below, where)
            else:
                self._leaf(values, name, kind, below, where, hide)
        return values

    def _leaf(
        self,
        values: dict[str, object],
        name: str,
        kind: object,
        node: Value | Branch | None,
        path: str,
        hide: bool = False,
    ) -> None:
        if node is None or is_absent(node, kind):
            self.origins[path] = _DEFAULT
            return
        self.origins[path] = origin_of(node)
        try:
            values[name] = fit(node, kind)
        except Unfit:
            shown = "" if hide or secret(kind) else f", not {shorten(plain(node))}"
            self.faults.append(Fault(path, f"must be {describe(kind)}{shown}", origin_of(node)))

    def _branch(self, node: Value | Branch | None, path: str) -> Branch:
        if isinstance(node, dict):
            return node
        if node is not None and node.data is not None:
            self.faults.append(Fault(path, f"must be a group of settings, not {shorten(node.data)}", node.origin))
        return {}

    @staticmethod
    def _branch_from_text(node: Value) -> Value | Branch:
        try:
            read = msgspec.json.decode(node.text or "")
        except msgspec.DecodeError:
            return node
        return {key: Value(value, node.origin) for key, value in read.items()} if isinstance(read, dict) else node


def is_absent(node: Value | Branch, kind: object) -> bool:
    """Null means "not set", and so does an empty variable where text is not what is wanted."""
    if isinstance(node, dict):
        return False
    return node.data is None or (node.text == "" and not node.typed and str not in alternatives(kind))


def fit(node: Value | Branch, kind: object) -> object:
    """The value of a leaf in the type of its setting. Unfit if it cannot be had."""
    kinds = alternatives(kind)
    if msgspec.Raw in kinds:
        return msgspec.Raw(msgspec.json.encode(_json(node)))
    if isinstance(node, dict):
        raise Unfit
    data: object = node.data
    if str in kinds and node.text is not None:
        data = node.text
    elif not node.typed and node.text is not None:
        data = from_text(node.text, kinds)
    try:
        return msgspec.convert(data, kind, strict=node.typed)
    except msgspec.ValidationError as error:
        raise Unfit from error


def from_text(text: str, kinds: tuple[object, ...]) -> object:
    """A text from the environment as the type that is wanted, as far as it needs our help."""
    if bool in kinds:
        return _WORDS.get(text.strip().lower(), text)
    if any(get_origin(kind) is list for kind in kinds):
        if text.lstrip().startswith("["):
            try:
                return msgspec.json.decode(text)
            except msgspec.DecodeError as error:
                raise Unfit from error
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _json(node: Value | Branch) -> object:
    if isinstance(node, dict):
        return {key: _json(below) for key, below in node.items()}
    if node.typed or node.text is None:
        return node.data
    try:
        decoded: object = msgspec.json.decode(node.text)
    except msgspec.DecodeError:
        return node.text
    return decoded


def struct_class(kind: object) -> type[msgspec.Struct] | None:
    """The type if it is a group of settings of its own, without its documentation."""
    bare = strip(kind)
    return bare if isinstance(bare, type) and issubclass(bare, msgspec.Struct) else None


def strip(kind: object) -> object:
    """The type without its documentation."""
    bare: object = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    return bare


def metas(kind: object) -> Iterator[msgspec.Meta]:
    """The documentation and bounds attached to a type, or to the types a union is made of."""
    if get_origin(kind) is Annotated:
        yield from (note for note in get_args(kind)[1:] if isinstance(note, msgspec.Meta))
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from metas(part)


def inline(kind: object) -> bool:
    """The settings below stand in the section itself, under no name of their own."""
    return any((meta.extra or {}).get("inline") for meta in metas(kind))


def secret(kind: object) -> bool:
    """The value must not be shown."""
    return any((meta.extra or {}).get("secret") for meta in metas(kind))


def alternatives(kind: object) -> tuple[object, ...]:
    """The types a union is made of, without None and documentation; a literal counts as the type of its values."""
    bare = strip(kind)
    parts = get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (bare,)
    found: list[object] = []
    for part in parts:
        if get_origin(part) is Literal:
            found += {type(value) for value in get_args(part)}
        elif part is not type(None):
            found.append(strip(part))
    return tuple(found)


def describe(kind: object) -> str:
    """What a setting takes, in words: `a whole number from 0 to 65535`."""
    bare = strip(kind)
    for part in get_args(bare) if get_origin(bare) in (Union, types.UnionType) else (bare,):
        if get_origin(part) is Literal:
            return "one of " + ", ".join(f"`{value}`" if value else "empty" for value in get_args(part))
    kinds = alternatives(kind)
    if bool in kinds:
        return "true or false"
    if int in kinds or float in kinds:
        return ("a whole number" if int in kinds else "a number") + bounds(kind)
    if any(get_origin(part) is list for part in kinds):
        return "a list of texts"
    return "text"


def bounds(kind: object) -> str:
    for meta in metas(kind):
        if meta.ge is not None and meta.le is not None:
            return f" from {meta.ge} to {meta.le}"
        if meta.ge is not None:
            return f" of at least {meta.ge}"
        if meta.gt is not None:
            return f" above {meta.gt}"
    return ""


def shorten(data: object) -> str:
    """A value as it may stand in a message."""
    text = data if isinstance(data, str) else msgspec.json.encode(data, enc_hook=str).decode()
    return f"`{text if len(text) <= 60 else text[:57] + '...'}`"
