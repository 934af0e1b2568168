"""What requests make use of, for those who watch: names of parameters and types of tools, and no values."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from treadle.wire.responses import CreateResponse

_ALWAYS = frozenset({"input", "model"})
"""Every request has them."""

_NULL = b"null"


class _Typed(msgspec.Struct):
    type: str = ""


_typed = msgspec.json.Decoder(_Typed)


def given_parameters(request: CreateResponse) -> list[str]:
    """The parameters that were set, in the order of the wire."""
    values = ((name, getattr(request, name)) for name in request.__struct_fields__ if name not in _ALWAYS)
    return [
        name for name, value in values if value is not None and not (isinstance(value, Raw) and bytes(value) == _NULL)
    ]


def declared_types(request: CreateResponse) -> list[str]:
    """The different types of tools, with all of OpenAI's names for web search as one."""
    found = (_typed.decode(tool).type for tool in request.tools or ())
    return sorted({"web_search" if kind.startswith("web_search") else kind for kind in found})
