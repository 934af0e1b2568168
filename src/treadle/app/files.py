"""Composition of files: where their rows and bytes are, who serves them and who clears them up."""

from __future__ import annotations

from pathlib import Path

from treadle.api.file_sweep import FileSweep
from treadle.api.files import FileService
from treadle.backends.blobs_local import LocalBlobs
from treadle.http.endpoints import Endpoint
from treadle.http.routes.files import FileRoutes
from treadle.settings import Settings
from treadle.store.db import Database
from treadle.store.files import SqlFiles


class FileStorage:
    """Made without I/O. `start` needs the open database, and `stop` comes before it closes."""

    def __init__(self, settings: Settings, database: Database) -> None:
        given = settings.files
        self.rows = SqlFiles(database)
        self.blobs = LocalBlobs(Path(settings.data_dir) / "blobs")
        self.service = FileService(
            self.rows, self.blobs, max_bytes=given.max_bytes, kept_seconds=given.kept_days * 86_400
        )
        self._sweep = FileSweep(self.service, self.rows, self.blobs)

    def endpoints(self) -> list[Endpoint]:
        return FileRoutes(self.service).endpoints()

    def start(self) -> None:
        self._sweep.start()

    async def stop(self) -> None:
        await self._sweep.stop()
        await self.blobs.close()
