"""What every index refuses, in the same words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from treadle.errors import InvalidRequest
from treadle.ports import Collection, IndexedChunk


def check_vector(collection: Collection, vector: Sequence[float]) -> None:
    """InvalidRequest for a vector that has another length than those of the collection, or that holds no numbers."""
    if len(vector) != collection.dimensions:
        raise InvalidRequest(
            f"The vector store holds vectors of {collection.dimensions} numbers; this one has {len(vector)}. It was "
            "probably made with another embedding model."
        )
    # One sum finds every infinity and NaN; a sum of finite numbers that overflows is no unit vector either.
    if not math.isfinite(sum(vector)):
        raise InvalidRequest("A vector holds something that is no finite number.")


def check_chunks(collection: Collection, chunks: Sequence[IndexedChunk]) -> None:
    for indexed in chunks:
        check_vector(collection, indexed.vector)


def unequal(collection: Collection, dimensions: int) -> InvalidRequest:
    """For a collection that was begun with vectors of another length."""
    return InvalidRequest(
        f"The vector store holds vectors of {dimensions} numbers, not of {collection.dimensions}. "
        "Make a new one for another embedding model."
    )


def storable(text: str) -> str:
    """A text as any database takes it: without half surrogate pairs, and with blanks for NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", " ")
