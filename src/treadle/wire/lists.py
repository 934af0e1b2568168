"""Pages of lists: one envelope for every listed kind (contract §1.3)."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw

from treadle.wire.responses import ListedResponse

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], kw_only=True):
    """`first_id` and `last_id` are empty strings on an empty page: strict SDKs refuse null there."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str = ""
    last_id: str = ""
    has_more: bool = False


AnyItem = Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/Item"})]
ItemList = Page[AnyItem]
ResponseList = Page[ListedResponse]
