"""A response as its row keeps it: only what differs from the defaults, so that storage grows with the text."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import msgspec
from msgspec import NODEFAULT, Raw

from treadle.api.includes import shown
from treadle.engine.marks import marks_of
from treadle.ports import StoredItem, StoredResponse
from treadle.wire.base import encode
from treadle.wire.responses import Response

R = TypeVar("R", bound=Response)

_COLUMNS = frozenset(
    {"id", "object", "status", "model", "created_at", "completed_at", "previous_response_id", "conversation", "output"}
)


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default_factory() if field.default_factory is not NODEFAULT else field.default


_DEFAULTS = {field.name: _default(field) for field in msgspec.structs.fields(Response) if field.name not in _COLUMNS}

_loose = msgspec.json.Decoder(dict[str, Raw])


def pack(response: Response) -> bytes:
    """JSON of the fields that are neither columns nor defaults."""
    values = ((name, getattr(response, name), default) for name, default in _DEFAULTS.items())
    return encode({name: value for name, value, default in values if value != default})


def given_inputs(found: StoredResponse) -> list[StoredItem]:
    """What the response was given, without what a compaction left of its history."""
    return given_of(found.inputs[marks_of(found.row.data).carried :])


def given_of(inputs: Sequence[StoredItem]) -> list[StoredItem]:
    """The items as they are listed: compactions are between the server and whoever keeps them (contract §11)."""
    return [item for item in inputs if item.kind != "compaction"]


def unpack(kind: type[R], found: StoredResponse, include: Collection[str]) -> R:
    """The response as a client sees it."""
    row = found.row
    fields = _loose.decode(row.data)
    columns = {
        "id": row.id,
        "status": row.status,
        "model": row.model,
        "created_at": row.created_at,
        "completed_at": row.completed_at,
        "previous_response_id": row.previous,
        "conversation": {"id": row.conversation} if row.conversation else None,
        "output": [shown(item, include) for item in found.outputs],
    }
    return msgspec.json.decode(
        encode(fields | {name: Raw(encode(value)) for name, value in columns.items()}), type=kind
    )
