"""Vectors in one byte for each number: a first look at all rows that costs a quarter of the full product.

It loses nothing. Beside its codes each row has a bound on what they can be wrong by, so the rows that may be among the
nearest are known for certain, and only their products are computed in full (docs/adr/0010).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy
import simsimd
from numpy.typing import NDArray

Vectors = NDArray[numpy.float32]
Bytes = NDArray[numpy.int8]

_LARGEST = 127
_ROUNDED = 1e-6
"""More than what the arithmetic of float32 adds to a bound."""


class Codes(msgspec.Struct):
    """Rows as `scale * number`. `loss` bounds the length of what that leaves out, `length` that of what it keeps."""

    numbers: Bytes
    scale: Vectors
    loss: Vectors
    length: Vectors

    @classmethod
    def empty(cls, rows: int, dimensions: int) -> Codes:
        numbers = numpy.empty((rows, dimensions), dtype=numpy.int8)
        return cls(numbers, *(numpy.empty(rows, dtype=numpy.float32) for _ in range(3)))

    @classmethod
    def of(cls, vectors: Vectors) -> Codes:
        made = cls.empty(*vectors.shape)
        made.write(0, vectors)
        return made

    @property
    def bytes(self) -> int:
        return self.numbers.nbytes + self.scale.nbytes + self.loss.nbytes + self.length.nbytes

    def write(self, start: int, vectors: Vectors) -> None:
        """Encodes the rows from `start` on."""
        end = start + len(vectors)
        scale = numpy.abs(vectors).max(axis=1, initial=0) / _LARGEST
        scale[scale == 0] = 1
        kept = numpy.rint(vectors / scale[:, None])
        self.numbers[start:end] = kept
        self.scale[start:end] = scale
        kept *= scale[:, None]
        self.length[start:end] = numpy.linalg.norm(kept, axis=1)
        self.loss[start:end] = numpy.linalg.norm(vectors - kept, axis=1) * (1 + _ROUNDED) + _ROUNDED

    def copy_to(self, other: Codes, rows: int) -> None:
        for mine, theirs in zip(self._arrays(), other._arrays(), strict=True):
            theirs[:rows] = mine[:rows]

    def about(self, rows: int, queries: Codes) -> tuple[Vectors, Vectors]:
        """The products of each query with the first rows, and by how much each may be wrong: queries by rows."""
        sums = simsimd.cdist(queries.numbers, self.numbers[:rows], metric="dot", out_dtype="float32")
        products = numpy.asarray(sums, dtype=numpy.float32)
        products *= self.scale[:rows]
        products *= queries.scale[:, None]
        wrong = self.loss[:rows] * (queries.length + queries.loss)[:, None]
        wrong += self.length[:rows] * queries.loss[:, None]
        wrong += _ROUNDED
        return products, wrong

    def _arrays(self) -> Sequence[NDArray[numpy.generic]]:
        return self.numbers, self.scale, self.loss, self.length
