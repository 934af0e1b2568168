"""JSON Schemas of the wire types, by name, for the OpenAPI document.

Not msgspec's own generator: that one cannot write defaults kept as bytes, and does not tell what a request may leave
out from what an answer always has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import get_args, get_origin

import msgspec
from msgspec import NODEFAULT, UNSET, Raw, UnsetType, inspect

Schema = dict[str, object]

_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
_SOURCE = re.compile(r" \([^()]*§[^()]*\)")
"""A docstring's note of where a rule comes from."""
_PYTHON_END = r"(?!\n)"
"""What makes Python's `$` mean what JSON Schema's does anyway."""


class Components:
    """The named schemas that were asked for, and all they refer to.

    `names` gives names to types that have none of their own, such as instances of generic types. `requests` are the
    types clients send; in all others every field is there, unless it can be unset.
    """

    def __init__(self, names: Mapping[object, str], requests: Iterable[object]) -> None:
        self._names = names
        self._classes: dict[str, object] = {}
        self._sent = _structs(inspect.multi_type_info(requests))
        self.schemas: dict[str, Schema] = {}

    def schema(self, kind: object) -> Schema:
        """The schema of a type; of structs, and of what they refer to, a reference. ValueError if two share a name."""
        return self._schema(inspect.type_info(kind))

    def _schema(self, kind: inspect.Type) -> Schema:
        match kind:
            case inspect.Metadata():
                return self._schema(kind.type) | (kind.extra_json_schema or {})
            case inspect.StructType():
                return self._reference(kind)
            case inspect.UnionType():
                return self._union(kind)
            case inspect.LiteralType():
                return _literal(kind.values)
            case inspect.ListType():
                return _bounded(
                    {"type": "array", "items": self._schema(kind.item_type)}, "Items", kind.min_length, kind.max_length
                )
            case inspect.DictType():
                return self._mapping(kind)
            case inspect.StrType():
                found = _bounded({"type": "string"}, "Length", kind.min_length, kind.max_length)
                return found | ({"pattern": kind.pattern.removesuffix(_PYTHON_END)} if kind.pattern else {})
            case inspect.IntType():
                return _number("integer", kind)
            case inspect.FloatType():
                return _number("number", kind)
            case inspect.BoolType():
                return {"type": "boolean"}
            case inspect.NoneType():
                return {"type": "null"}
            case inspect.RawType() | inspect.AnyType():
                return {}
            case _:
                raise TypeError(f"A wire type uses {kind!r}, which has no schema here.")

    def _reference(self, kind: inspect.StructType) -> Schema:
        name = self._names.get(kind.cls) or kind.cls.__name__
        if name not in self._classes:
            self._classes[name] = kind.cls
            self.schemas[name] = {}  # holds the place in the order, and ends recursion
            self.schemas[name] = self._struct(kind)
        elif self._classes[name] is not kind.cls:
            raise ValueError(f"Two wire types are called {name}.")
        return reference(name)

    def _struct(self, kind: inspect.StructType) -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        if kind.tag_field is not None:
            properties[kind.tag_field] = {"type": "string", "const": kind.tag}
            required.append(kind.tag_field)
        struct: type[msgspec.Struct] = get_origin(kind.cls) or kind.cls
        always = kind.cls not in self._sent and not struct.__struct_config__.omit_defaults
        unset = {field.name for field in msgspec.structs.fields(kind.cls) if UnsetType in get_args(field.type)}
        for field in kind.fields:
            properties[field.encode_name] = self._schema(field.type) | _default(field)
            if field.required or (always and field.name not in unset):
                required.append(field.encode_name)
        found: Schema = {"type": "object", "properties": properties}
        if required:
            found["required"] = required
        if struct.__doc__:
            found["description"] = _SOURCE.sub("", " ".join(struct.__doc__.split()))
        return found

    def _union(self, kind: inspect.UnionType) -> Schema:
        if len(kind.types) == 2 and isinstance(kind.types[1], inspect.NoneType):
            return _nullable(self._schema(kind.types[0]))
        found: Schema = {"anyOf": [self._schema(one) for one in kind.types]}
        tagged = [one for one in kind.types if isinstance(one, inspect.StructType) and one.tag_field is not None]
        if len(tagged) == len(kind.types):
            mapping = {str(one.tag): self._reference(one)["$ref"] for one in tagged}
            found["discriminator"] = {"propertyName": tagged[0].tag_field, "mapping": mapping}
        return found

    def _mapping(self, kind: inspect.DictType) -> Schema:
        found: Schema = {"type": "object", "additionalProperties": self._schema(kind.value_type)}
        names = self._schema(kind.key_type)
        if names != {"type": "string"}:
            found["propertyNames"] = names
        return _bounded(found, "Properties", kind.min_length, kind.max_length)


def reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _literal(values: tuple[object, ...]) -> Schema:
    found: Schema = {"type": "string"} if all(isinstance(value, str) for value in values) else {}
    return found | ({"const": values[0]} if len(values) == 1 else {"enum": list(values)})


def _nullable(schema: Schema) -> Schema:
    kind = schema.get("type")
    if isinstance(kind, str) and not schema.keys() & {"enum", "const"}:
        return schema | {"type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def _number(name: str, kind: inspect.IntType | inspect.FloatType) -> Schema:
    bounds = {word: getattr(kind, short) for short, word in _BOUNDS.items()}
    return {"type": name} | {word: bound for word, bound in bounds.items() if bound is not None}


def _bounded(found: Schema, what: str, low: int | None, high: int | None) -> Schema:
    bounds = {f"min{what}": low, f"max{what}": high}
    return found | {word: bound for word, bound in bounds.items() if bound is not None}


def _default(field: inspect.Field) -> Schema:
    """A default that says something: null, unset and empty say no more than that the field may be left out."""
    value = field.default
    if isinstance(value, Raw):
        value = msgspec.json.decode(value)
    fixed = isinstance(field.type, inspect.LiteralType) and len(field.type.values) == 1
    return (
        {}
        if fixed or value is NODEFAULT or value is UNSET or value is None
        else {"default": msgspec.to_builtins(value)}
    )


def _structs(kinds: Iterable[inspect.Type]) -> set[type]:
    """The struct classes that types are made of."""
    found: set[type] = set()
    ahead: list[inspect.Type] = list(kinds)
    while ahead:
        match ahead.pop():
            case inspect.StructType() as struct:
                if struct.cls not in found:
                    found.add(struct.cls)
                    ahead += [field.type for field in struct.fields]
            case inspect.UnionType() as union:
                ahead += union.types
            case inspect.ListType() as listed:
                ahead.append(listed.item_type)
            case inspect.DictType() as mapping:
                ahead.append(mapping.value_type)
            case inspect.Metadata() as noted:
                ahead.append(noted.type)
            case _:
                pass
    return found
