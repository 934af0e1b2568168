"""Credentials in what clients declare: left out of everything that is shown or stored (bug case 58)."""

from __future__ import annotations

import re

import msgspec
from msgspec import Raw

from treadle.wire.base import decode, encode

_any: msgspec.json.Decoder[object] = msgspec.json.Decoder(object)
_SECRET = re.compile(r"(.*[_-])?(authorization|headers|domain[_-]secrets)", re.IGNORECASE | re.DOTALL)


def without_secrets(raw: Raw, at: str) -> Raw:
    """A JSON value without credentials at any depth, however their keys are written. InvalidRequest if it is none.

    Encoded anew even if it holds none: of a key that comes twice, only the last is known to be harmless.
    """
    return Raw(encode(_clean(decode(_any, raw, at))))


def _clean(value: object, named: bool = False) -> object:
    """`named`: the keys are names that a schema describes, not fields."""
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _plain_address(one)
        if key.lower() == "server_url" and isinstance(one, str)
        else _clean(one, key == "properties" and not named)
        for key, one in value.items()
        if named or not _SECRET.fullmatch(key)
    }


def _plain_address(url: str) -> str:
    """The address without query, fragment, and what stands before an `@` in its host."""
    url = re.split(r"[?#]", url, maxsplit=1)[0]
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
