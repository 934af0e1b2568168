"""Configuration as it was written, before types: a tree whose every value knows where it came from."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec


class Origin(msgspec.Struct, frozen=True):
    """Where a value came from; `detail` is the file and line, the variable, the flag or the vendor."""

    kind: Literal["default", "file", "environment", "flag", "argument", "vendor table", "found"]
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.detail}".rstrip()


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong: the dotted path of the setting, what is wrong, and where that was written."""

    path: str
    message: str
    origin: Origin = Origin("default")

    def __str__(self) -> str:
        where = "" if self.origin.kind == "default" else f" ({self.origin})"
        return f"{self.path}: {self.message}{where}" if self.path else f"{self.message}{where}"


class Value(msgspec.Struct, frozen=True):
    """A scalar or a list as written.

    `text` is the writing of a scalar that may stand for another type: all of an environment variable, of a `${...}`
    or of a plain YAML scalar. `typed` says that `data` already has the type its writer meant.
    """

    data: object
    origin: Origin
    text: str | None = None
    typed: bool = True


Branch = dict[str, "Value | Branch"]


def put(tree: Branch, keys: list[str], value: Value | Branch) -> None:
    """Sets a value deep in a tree; a plain value in the way gives place to a branch."""
    for key in keys[:-1]:
        below = tree.get(key)
        if not isinstance(below, dict):
            below = tree[key] = {}
        tree = below
    tree[keys[-1]] = value


def merge(tree: Branch, given: Mapping[str, object], origin: Origin) -> None:
    """Sets all of `given`, nested as in the file; what it does not name stays."""
    for name, data in given.items():
        if isinstance(data, Mapping):
            below = tree.get(name)
            if not isinstance(below, dict):
                below = tree[name] = {}
            merge(below, data, origin)
        else:
            tree[name] = Value(data, origin)


def get(tree: Branch, *keys: str) -> Value | Branch | None:
    node: Value | Branch | None = tree
    for key in keys:
        if not isinstance(node, dict):
            return None
        node = node.get(key)
    return node


def origin_of(node: Value | Branch | None) -> Origin:
    """Where a value, or the first value below a branch, came from."""
    while isinstance(node, dict):
        node = next(iter(node.values()), None)
    return node.origin if node is not None else Origin("default")


def plain(node: Value | Branch) -> object:
    """The data alone."""
    if isinstance(node, dict):
        return {key: plain(below) for key, below in node.items()}
    return node.data


def join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean x?` for a near miss, else nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
