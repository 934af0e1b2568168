"""Composition of files: where their rows and bytes are, who serves them and who clears them up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from treadle.api.file_sweep import FileSweep
from treadle.api.files import FileService
from treadle.app.plugged import PluggedBlobs
from treadle.backends.blobs_local import LocalBlobs
from treadle.backends.blobs_s3 import S3Blobs, S3Place
from treadle.errors import InvalidRequest
from treadle.http.endpoints import Endpoint
from treadle.http.routes.files import FileRoutes
from treadle.ports import Blobs
from treadle.settings import Settings
from treadle.store.db import Database
from treadle.store.files import SqlFiles


class FileStorage:
    """Made without I/O. `start` needs the open database, and `stop` comes before it closes."""

    def __init__(self, settings: Settings, database: Database, plugged: Callable[[], Blobs]) -> None:
        """`plugged` gives the blobs if a plug-in keeps them."""
        given = settings.files
        self.rows = SqlFiles(database)
        self.blobs, self._close = blobs_of(settings, plugged)
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
        await self._close()


def blobs_of(settings: Settings, plugged: Callable[[], Blobs]) -> tuple[Blobs, Callable[[], Awaitable[None]]]:
    """The blobs that the settings name, and what lets go of them. InvalidRequest if they name none."""
    given = settings.files
    if given.blobs:
        return PluggedBlobs(plugged), _nothing
    if not given.url:
        local = LocalBlobs(Path(settings.data_dir) / "blobs")
        return local, local.close
    parts = urlsplit(given.url)
    if parts.scheme != "s3" or not parts.hostname or parts.query or parts.fragment:
        raise InvalidRequest("`files.url`: expected s3://bucket or s3://bucket/prefix")
    if find_spec("aiobotocore") is None:
        raise InvalidRequest("`files.url` needs aiobotocore: pip install 'treadle[s3]'")
    prefix = parts.path.strip("/")
    remote = S3Blobs(
        S3Place(
            bucket=parts.netloc,
            prefix=f"{prefix}/" if prefix else "",
            endpoint=given.endpoint,
            region=given.region,
            key_id=given.key_id,
            secret=given.key,
        )
    )
    return remote, remote.close


async def _nothing() -> None:
    """A plug-in closes itself."""
