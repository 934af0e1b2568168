"""Contextual chunking: a model writes for each chunk what it is about in its document (OGX's `contextual`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from treadle.api.asking import ask
from treadle.errors import ServerError
from treadle.ports import Chunk, Route, Router
from treadle.wire.vector_stores import CHUNK_CONTENT, WHOLE_DOCUMENT, ContextualRules

log = logging.getLogger("treadle.ingest")

DOCUMENT_CHARACTERS = 200_000
"""Of a document that are shown to the model at most."""

_CHARACTERS_PER_TOKEN = 3
_ANSWER_TOKENS = 1024
_CONTEXT_CHARACTERS = 2000


class ContextWriter:
    """Puts contexts before chunks. A chunk whose context fails stays as it is, and the log says so."""

    def __init__(self, router: Router, *, seconds: float = 60.0, concurrency: int = 4) -> None:
        """Bounds of one question, and how many are asked at once, unless the strategy says otherwise."""
        self._router = router
        self._seconds = seconds
        self._concurrency = concurrency

    async def situate(self, rules: ContextualRules, document: str, chunks: Sequence[Chunk]) -> list[Chunk]:
        """The chunks, each after its context and an empty line."""
        try:
            route = await self._router.route(rules.model_id or "")
        except ServerError as fault:
            log.warning("chunks are indexed without context: %s", fault.message)
            return list(chunks)
        window = route.capabilities.context_window
        if window is not None:
            room = (window - rules.max_chunk_size_tokens - _ANSWER_TOKENS) * _CHARACTERS_PER_TOKEN
            document = document[: max(0, room)]
        gate = asyncio.Semaphore(rules.max_concurrency or self._concurrency)
        seconds = rules.timeout_seconds or self._seconds
        return list(await asyncio.gather(*(_one(route, rules, document, chunk, gate, seconds) for chunk in chunks)))


async def _one(
    route: Route, rules: ContextualRules, document: str, chunk: Chunk, gate: asyncio.Semaphore, seconds: float
) -> Chunk:
    # Split rather than replaced: a document may hold the placeholders too.
    before, _, rest = rules.context_prompt.partition(WHOLE_DOCUMENT)
    between, _, after = rest.partition(CHUNK_CONTENT)
    prompt = f"{before}{document}{between}{chunk.text}{after}"
    try:
        async with gate:
            context = await ask(route, prompt, seconds=seconds, max_tokens=_ANSWER_TOKENS)
    except ServerError as fault:
        log.warning("chunk %d is indexed without context: %s", chunk.number, fault.message)
        return chunk
    if not context:
        log.warning("chunk %d is indexed without context: the model wrote none", chunk.number)
        return chunk
    return msgspec.structs.replace(chunk, text=f"{context[:_CONTEXT_CHARACTERS]}\n\n{chunk.text}")
