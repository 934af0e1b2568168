"""Puts units together into chunks: as full as allowed, ending where the document itself ends a part. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from treadle.errors import InvalidRequest
from treadle.ports import Chunk, ChunkRules
from treadle.retrieval.extract.blocks import Block
from treadle.retrieval.units import Counter, Cut, Unit, Units

MIN_TOKENS = 16
"""The smallest `max_tokens`: one character can take four tokens, and a row needs its header beside it."""


def chunked(blocks: Iterable[Block], rules: ChunkRules, count: Counter) -> Iterator[Chunk]:
    """The document in chunks of at most `rules.max_tokens`, numbered from 0.

    All text of the blocks is in them, in order; only blanks at the ends of lines and chunks are not kept. An overlap
    of more than half a chunk is taken as half. InvalidRequest for a `max_tokens` below MIN_TOKENS.
    """
    if rules.max_tokens < MIN_TOKENS:
        raise InvalidRequest(f"Chunks must have at least {MIN_TOKENS} tokens.", param="max_chunk_size_tokens")
    packer = _Packer(rules.max_tokens, max(0, min(rules.overlap_tokens, rules.max_tokens // 2)), count)
    units = Units(count, min(rules.max_tokens // 4, _UNIT)).of(blocks)
    for number, (text, first) in enumerate(packer.packed(units)):
        yield Chunk(number, text, first.page, first.section)


_UNIT = 200
"""Tokens. A sentence longer than this may be split, so that an overlap can be had from it."""
_SECTION_SHARE = 0.25
"""How full a chunk must be for a heading to end it. Smaller sections share a chunk."""
_GOOD_CUTS = ((Cut.BLOCK, 0.6), (Cut.SENTENCE, 0.75))
"""A full chunk ends at its last cut of that kind or better, if what stands before it fills that share of it."""


class _Packer:
    """Holds the units of the chunk that is being filled; the first `lead` of them repeat the end of the one before."""

    def __init__(self, limit: int, overlap: int, count: Counter) -> None:
        self._limit = limit
        self._overlap = overlap
        self._count = count
        self._units: list[Unit] = []
        self._lead = 0
        self._size = 0
        self._headers: dict[str, int] = {}

    def packed(self, units: Iterable[Unit]) -> Iterator[tuple[str, Unit]]:
        """(text, first unit) of each chunk."""
        for unit in units:
            if unit.cut == Cut.HEADING and self._size >= self._limit * _SECTION_SHARE and not self._ends_in_heading():
                yield from self._rest()
            while self._units and self._size + unit.tokens > self._limit:
                if self._lead == len(self._units):
                    self._drop_lead()
                else:
                    yield self._emit(self._best_cut(unit), unit)
            if not self._units:
                self._size = self._header_cost(unit)
            self._units.append(unit)
            self._size += unit.tokens
        yield from self._rest()

    def _rest(self) -> Iterator[tuple[str, Unit]]:
        while self._lead < len(self._units):
            yield self._emit(len(self._units), None)
        self._units, self._lead, self._size = [], 0, 0

    def _ends_in_heading(self) -> bool:
        return bool(self._units) and self._units[-1].cut == Cut.HEADING

    def _drop_lead(self) -> None:
        self._units.pop(0)
        self._lead -= 1
        self._measure()

    def _measure(self) -> None:
        header = self._header_cost(self._units[0]) if self._units else 0
        self._size = header + sum(unit.tokens for unit in self._units)

    def _header_cost(self, unit: Unit) -> int:
        if not unit.header or unit.text == unit.header:
            return 0
        if unit.header not in self._headers:
            self._headers = {unit.header: self._count(unit.header + "\n")}
        return self._headers[unit.header]

    def _best_cut(self, coming: Unit) -> int:
        """How many units the chunk shall hold, given that `coming` does not fit any more."""
        cuts = [unit.cut for unit in [*self._units, coming]]
        sizes = [0]
        for unit in self._units:
            sizes.append(sizes[-1] + unit.tokens)
        places = range(self._lead + 1, len(self._units) + 1)
        for wanted, share in _GOOD_CUTS:
            for place in reversed(places):
                if sizes[place] < self._limit * share:
                    break
                if cuts[place] >= wanted:
                    return place
        return len(self._units)

    def _emit(self, end: int, coming: Unit | None) -> tuple[str, Unit]:
        """Ends the chunk before unit `end`. What follows that, and the overlap, begin the next one."""
        while True:
            text = self._text(self._units[:end])
            # Token counts of parts add up to no less than that of the whole nearly always, not always.
            if end == 1 or self._count(text) <= self._limit:
                break
            if end > self._lead + 1:
                end -= 1
            else:
                self._units.pop(0)
                self._lead -= 1
                end -= 1
        done, rest = self._units[:end], self._units[end:]
        lead = self._repeated(done) if rest or coming else []
        self._units, self._lead = lead + rest, len(lead)
        while self._lead and rest and self._over():
            self._drop_lead()
        self._measure()
        return text, done[0]

    def _over(self) -> bool:
        return sum(unit.tokens for unit in self._units) > self._limit

    def _text(self, units: list[Unit]) -> str:
        first = units[0]
        parts = [first.header, "\n"] if self._header_cost(first) else []
        parts.append(first.text)
        for unit in units[1:]:
            parts += (unit.gap, unit.text)
        return "".join(parts)

    def _repeated(self, units: list[Unit]) -> list[Unit]:
        """The units at the end that the next chunk begins with: whole sentences or lines of the same section."""
        size = 0
        start = len(units)
        while start > 1:
            unit = units[start - 1]
            if unit.in_table or unit.cut == Cut.HEADING or size + unit.tokens > self._overlap:
                break
            size += unit.tokens
            start -= 1
        for wanted in (Cut.LINE, Cut.WORD):
            for place in range(start, len(units)):
                if units[place].cut >= wanted:
                    return units[place:]
        return []
