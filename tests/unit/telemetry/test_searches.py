"""Searches of vector stores are watched from outside; what they are asked and what they find goes by unread."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.behaviour.telemetry_kit import Spans, failed, told
from treadle.errors import NotFound
from treadle.ports import Passage, PassageQuery, Passages
from treadle.scope import LOCAL, Scope
from treadle.telemetry.searches import WatchedPassages


class Shelf:
    """Finds one passage, in all stores but `vs_gone`."""

    def __init__(self) -> None:
        self.checked: list[str] = []

    async def check(self, scope: Scope, stores: Sequence[str], param: str) -> None:
        self.checked += stores

    async def passages(self, scope: Scope, query: PassageQuery) -> Passages:
        if query.stores == ["vs_gone"]:
            raise NotFound("CANARY is gone.")
        found = Passage(file_id="file_1", filename="CANARY.txt", score=0.5, text="CANARY", attributes={})
        return Passages([found], {store: "CANARY" for store in query.stores if store == "vs_gone"})


async def test_a_search_is_a_span_with_its_stores_and_counts() -> None:
    spans, shelf = Spans(), Shelf()
    search = WatchedPassages(shelf, spans.observer)
    await search.check(LOCAL, ["vs_1"], "tools")
    given = await search.passages(LOCAL, PassageQuery(stores=["vs_1", "vs_gone"], queries=["CANARY?"]))
    assert (len(given.found), shelf.checked) == (1, ["vs_1"])
    assert told(spans.one("retrieval")) == {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": "vs_1,vs_gone",
        "treadle.search.results": 1,
        "treadle.search.broken_stores": 1,
    }
    assert "CANARY" not in spans.one("retrieval").to_json()


async def test_a_search_that_fails_is_told_by_its_kind() -> None:
    spans = Spans()
    with pytest.raises(NotFound):
        await WatchedPassages(Shelf(), spans.observer).passages(LOCAL, PassageQuery(stores=["vs_gone"], queries=["q"]))
    assert failed(spans.one("retrieval")) == "not_found"
    assert "CANARY" not in spans.one("retrieval").to_json()
