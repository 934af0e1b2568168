"""Vector stores: creating, changing, deleting and listing them (contract §13)."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import UNSET

from treadle.api.attaching import Attachments, checked_ids
from treadle.api.store_access import known_store, missing_store, shown_counts
from treadle.api.vectors import EmbeddingChoice, TextVectors
from treadle.errors import InvalidRequest
from treadle.ids import new_id
from treadle.ports import (
    CountedStore,
    Order,
    Router,
    StoreChanges,
    VectorIndex,
    VectorStoreRow,
    VectorStores,
)
from treadle.scope import Scope
from treadle.wire.responses import MAX_METADATA, checked_metadata
from treadle.wire.vector_stores import (
    AttachFile,
    CreateVectorStore,
    ExpiresAfter,
    StoreStatus,
    UpdateVectorStore,
    VectorStore,
    VectorStoreDeleted,
    VectorStoreList,
)


class VectorStoreService:
    """The use cases of `/v1/vector_stores`, without files and searches."""

    def __init__(
        self,
        stores: VectorStores,
        attachments: Attachments,
        index: VectorIndex,
        vectors: TextVectors,
        router: Router,
        *,
        embedding_model: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`embedding_model` is the one for stores that name none."""
        self._stores = stores
        self._attachments = attachments
        self._index = index
        self._vectors = vectors
        self._router = router
        self._model = embedding_model
        self._clock = clock

    async def create(self, scope: Scope, request: CreateVectorStore) -> VectorStore:
        """An unknown embedding model or one that cannot give the dimensions fails here and not at the first file."""
        metadata = dict(checked_metadata(request.metadata))
        ids = checked_ids(request.file_ids or (), "file_ids")
        wanted = [AttachFile(file_id=file_id) for file_id in ids]
        chunking = await self._attachments.chunking(request.chunking_strategy, "chunking_strategy")
        choice = await self._choice(request, metadata)
        now = int(self._clock())
        row = VectorStoreRow(
            id=new_id("vs"),
            created_at=now,
            last_active_at=now,
            name=request.name or "",
            description=request.description or "",
            metadata=_with_choices(metadata, request),
            embedding_model=choice.model,
            dimensions=choice.dimensions,
            shortened=choice.shortened,
            expires_days=request.expires_after.days if request.expires_after else None,
        )
        await self._stores.create(scope, row)
        if wanted:
            await self._attachments.settled(scope, row.id, [(file, chunking) for file in wanted])
        return await self.get(scope, row.id)

    async def get(self, scope: Scope, store_id: str) -> VectorStore:
        found = await self._stores.get(scope, store_id)
        if found is None:
            raise missing_store(store_id)
        return self._shown(found)

    async def list(
        self, scope: Scope, *, after: str | None, before: str | None, limit: int, order: Order
    ) -> VectorStoreList:
        page = await self._stores.page(scope, after=after, before=before, limit=limit, order=order)
        data = [self._shown(found) for found in page.stores]
        first, last = (data[0].id, data[-1].id) if data else ("", "")
        return VectorStoreList(data=data, first_id=first, last_id=last, has_more=page.has_more)

    async def update(self, scope: Scope, store_id: str, request: UpdateVectorStore) -> VectorStore:
        """Counts as use, so that a new expiry begins now: it brings an expired store back."""
        expiry = request.expires_after
        changes = StoreChanges(
            name=request.name,
            metadata=None if request.metadata is None else checked_metadata(request.metadata),
            expires_days=expiry.days if isinstance(expiry, ExpiresAfter) else expiry,
            last_active_at=int(self._clock()),
        )
        found = await self._stores.update(scope, store_id, changes)
        if found is None:
            raise missing_store(store_id)
        return self._shown(found)

    async def delete(self, scope: Scope, store_id: str) -> VectorStoreDeleted:
        """Takes the chunks first: if that fails the store is still there, and can be deleted again."""
        row = await known_store(self._stores, scope, store_id)
        await self._index.drop(self._stores.collection(scope, row))
        if not await self._stores.delete(scope, store_id):
            raise missing_store(store_id)
        return VectorStoreDeleted(store_id)

    async def _choice(self, request: CreateVectorStore, metadata: dict[str, str]) -> EmbeddingChoice:
        model = request.embedding_model
        dimensions = _number(request.embedding_dimension)
        if model is None and (named := metadata.get("embedding_model")) and await self._known(named):
            # OGX's clients may say it there. To others the key means whatever they like.
            model = named
            if dimensions is None and (text := metadata.get("embedding_dimension", "")).isdecimal():
                dimensions = int(text)
        model = model or self._model
        if not model:
            raise InvalidRequest(
                "Missing required parameter: 'embedding_model'. No default is configured (embeddings.default).",
                param="embedding_model",
                code="missing_required_parameter",
            )
        return await self._vectors.choose(model, dimensions)

    async def _known(self, model: str) -> bool:
        try:
            await self._router.raw(model)
        except InvalidRequest:
            return False
        return True

    def _shown(self, found: CountedStore) -> VectorStore:
        row, now = found.row, self._clock()
        return VectorStore(
            id=row.id,
            created_at=row.created_at,
            name=row.name,
            description=row.description or UNSET,
            usage_bytes=found.usage_bytes,
            file_counts=shown_counts(found.counts),
            status=_status(found, now),
            expires_after=UNSET
            if row.expires_days is None
            else ExpiresAfter(anchor="last_active_at", days=row.expires_days),
            expires_at=row.expires_at,
            last_active_at=row.last_active_at,
            metadata=row.metadata,
            embedding_model=row.embedding_model,
            embedding_dimension=row.dimensions,
        )


def _number(given: str | int | None) -> int | None:
    if isinstance(given, str) and (not given.isdecimal() or int(given) == 0):
        raise InvalidRequest(
            "Invalid value for 'embedding_dimension': expected a whole number.", param="embedding_dimension"
        )
    return None if given is None else int(given)


def _with_choices(metadata: dict[str, str], request: CreateVectorStore) -> dict[str, str]:
    """The metadata with what OGX's clients, which choose these things in the request, look for there."""
    asked = {
        "embedding_model": request.embedding_model,
        "embedding_dimension": request.embedding_dimension,
        "provider_id": request.provider_id,
    }
    for key, value in asked.items():
        if value is not None and len(metadata) < MAX_METADATA:
            metadata.setdefault(key, str(value))
    return metadata


def _status(found: CountedStore, now: float) -> StoreStatus:
    if found.row.expired(now):
        return "expired"
    return "in_progress" if found.counts.in_progress else "completed"
