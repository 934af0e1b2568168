"""Whoever watches the server: nobody, an OpenTelemetry collector, or the observer of the program around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from treadle.errors import InvalidRequest
from treadle.http.endpoints import Endpoint
from treadle.http.observed import Observed
from treadle.http.routes.metrics import MetricsRoutes
from treadle.ports import UNWATCHED, Observer, PassageSearch
from treadle.settings import Settings

if TYPE_CHECKING:
    from treadle.telemetry.export import Export
    from treadle.telemetry.page import MetricsPage


class Observing:
    """The observer, and what goes around others for its sake: nothing where nobody watches."""

    def __init__(self, settings: Settings, given: Observer | None) -> None:
        """`given` takes the place of what the settings say. InvalidRequest if those cannot be followed."""
        self._export: Export | None = None
        self._page: MetricsPage | None = None
        if given is None and (settings.telemetry.enabled or settings.telemetry.prometheus):
            self._export, self._page = _export(settings)
        self.observer: Observer = given or (self._export.observer if self._export else UNWATCHED)

    def around(self, app: ASGIApp) -> ASGIApp:
        return app if self.observer is UNWATCHED else Observed(app, self.observer)

    def endpoints(self) -> list[Endpoint]:
        if self._page is None:
            return []
        return MetricsRoutes(self._page.text, self._page.content_type).endpoints()

    @property
    def watched(self) -> bool:
        return self.observer is not UNWATCHED

    def searches(self, search: PassageSearch) -> PassageSearch:
        if self.observer is UNWATCHED:
            return search
        from treadle.telemetry.searches import WatchedPassages

        return WatchedPassages(search, self.observer)

    async def close(self) -> None:
        """Sends what is left."""
        if self._export is not None:
            await self._export.close()


def _export(settings: Settings) -> tuple[Export, MetricsPage | None]:
    given = settings.telemetry
    try:
        # Start-up time and memory that only those pay who want it.
        from treadle.telemetry.export import Export
        from treadle.telemetry.page import MetricsPage
    except ModuleNotFoundError as error:
        name = "enabled" if given.enabled else "prometheus"
        raise InvalidRequest(f"`telemetry.{name}` needs {error.name}: pip install 'treadle[otel]'") from None
    page = MetricsPage() if given.prometheus else None
    export = Export(
        endpoint=given.endpoint,
        headers=given.headers,
        service=given.service_name,
        metrics=given.metrics,
        sent=given.enabled,
        page=page,
    )
    return export, page
