"""Searching one vector store through the REST API, with the query rewritten if asked for (contract §13)."""

from __future__ import annotations

import asyncio
import logging

from msgspec import UNSET

from treadle.api.asking import ask
from treadle.errors import InvalidRequest, ServerError
from treadle.ports import Passage, PassageQuery, PassageSearch, Route, Router
from treadle.scope import Scope
from treadle.wire.vector_stores import SearchResult, SearchResultsPage, SearchVectorStore, TextContent

log = logging.getLogger("treadle.search")

_REWRITE_SECONDS, _REWRITE_TOKENS, _LONGEST = 20.0, 512, 1000
_BEFORE = (
    "Rewrite the text between the marks as one query for a search engine: keep names, numbers and what is asked for, "
    "leave out everything else. Answer with the query only.\n<text>\n"
)
_AFTER = "\n</text>"


class SearchService:
    """The use case of `/v1/vector_stores/{id}/search`."""

    def __init__(self, passages: PassageSearch, router: Router, *, default_model: str = "") -> None:
        """`default_model` rewrites queries."""
        self._passages = passages
        self._router = router
        self._model = default_model

    async def search(self, scope: Scope, store_id: str, request: SearchVectorStore) -> SearchResultsPage:
        await self._passages.check(scope, [store_id], "vector_store_id")
        queries = [request.query] if isinstance(request.query, str) else request.query
        if request.rewrite_query:
            queries = await self._rewritten(queries)
        found = await self._passages.passages(
            scope,
            PassageQuery(
                stores=[store_id],
                queries=queries,
                filters=request.filters,
                ranking=request.ranking_options,
                mode=request.search_mode,
                limit=request.max_num_results or 10,
            ),
        )
        return SearchResultsPage(search_query=queries, data=[_shown(passage) for passage in found.found])

    async def _rewritten(self, queries: list[str]) -> list[str]:
        if not self._model:
            raise InvalidRequest(
                "Query rewriting is not available: no default model is configured (default_model).",
                param="rewrite_query",
            )
        route = await self._router.route(self._model)
        return list(await asyncio.gather(*(_rewritten(route, query) for query in queries)))


async def _rewritten(route: Route, query: str) -> str:
    """The query as the model would look for it; as it is if the model does not answer with one line."""
    try:
        text = await ask(route, f"{_BEFORE}{query}{_AFTER}", seconds=_REWRITE_SECONDS, max_tokens=_REWRITE_TOKENS)
    except ServerError as fault:
        log.warning("a query is searched for as it is: %s", fault.message)
        return query
    text = text.strip('"')
    if not text or "\n" in text or len(text) > _LONGEST:
        log.warning("a query is searched for as it is: the model wrote no query")
        return query
    return text


def _shown(passage: Passage) -> SearchResult:
    return SearchResult(
        file_id=passage.file_id,
        filename=passage.filename,
        score=passage.score,
        attributes=passage.attributes,
        content=[TextContent(text=passage.text)],
        page=UNSET if passage.page is None else passage.page,
        section=passage.section or UNSET,
    )
