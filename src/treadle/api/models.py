"""Models on offer, and what runs behind them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from treadle.errors import NotFound, UnknownModel
from treadle.ports import ModelEntry, Router
from treadle.wire.models import Model, ModelDetails, ModelList, Provider, ProviderList


class ModelService:
    """The use cases of `/v1/models` and `/v1/providers`."""

    def __init__(self, router: Router, providers: Sequence[Provider], started_at: int) -> None:
        self._router = router
        self._providers = list(providers)
        self._started_at = started_at

    async def all(self) -> ModelList:
        return ModelList([self._shown(entry) for entry in await self._router.models()])

    async def get(self, model_id: str) -> Model:
        for entry in await self._router.models():
            if model_id in (entry.id, entry.upstream):
                return self._shown(entry)
        raise UnknownModel(
            f"Model '{model_id[:256]}' not found. Use 'client.models.list()' to list available Models.", param="model"
        )

    def providers(self) -> ProviderList:
        return ProviderList(self._providers)

    def provider(self, provider_id: str) -> Provider:
        for provider in self._providers:
            if provider.provider_id == provider_id:
                return provider
        raise NotFound(f"Provider '{provider_id[:128]}' not found.", param="provider_id")

    def _shown(self, entry: ModelEntry) -> Model:
        return Model(
            id=entry.id,
            created=self._started_at,
            owned_by=entry.provider,
            custom_metadata=ModelDetails(
                model_type="embedding" if entry.dimensions else "llm",
                provider_id=entry.provider,
                provider_resource_id=entry.upstream,
                embedding_dimension=entry.dimensions or UNSET,
            ),
        )
