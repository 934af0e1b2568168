"""Whoever watches the server: nobody, an OpenTelemetry collector, or the observer of the program around it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from treadle.errors import InvalidRequest
from treadle.http.observed import Observed
from treadle.ports import UNWATCHED, Observer, PassageSearch
from treadle.settings import Settings

if TYPE_CHECKING:
    from treadle.telemetry.export import Export


class Observing:
    """The observer, and what goes around others for its sake: nothing where nobody watches."""

    def __init__(self, settings: Settings, given: Observer | None) -> None:
        """`given` takes the place of what the settings say. InvalidRequest if those cannot be followed."""
        self._export: Export | None = None
        if given is None and settings.telemetry.enabled:
            self._export = _export(settings)
        self.observer: Observer = given or (self._export.observer if self._export else UNWATCHED)

    def around(self, app: ASGIApp) -> ASGIApp:
        return app if self.observer is UNWATCHED else Observed(app, self.observer)

    def searches(self, search: PassageSearch) -> PassageSearch:
        if self.observer is UNWATCHED:
            return search
        from treadle.telemetry.searches import WatchedPassages

        return WatchedPassages(search, self.observer)

    async def close(self) -> None:
        """Sends what is left."""
        if self._export is not None:
            await self._export.close()


def _export(settings: Settings) -> Export:
    try:
        from treadle.telemetry.export import Export  # start-up time and memory that only those pay who want it
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"`telemetry.enabled` needs {error.name}: pip install 'treadle[otel]'") from None
    given = settings.telemetry
    return Export(endpoint=given.endpoint, headers=given.headers, service=given.service_name, metrics=given.metrics)
