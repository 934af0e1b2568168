"""Finding out whether this process has a database file to itself."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from treadle.errors import StorageFault

if sys.platform != "win32":
    import fcntl

SECONDS = 300
"""How long to wait for another process that is starting on the same file; it may be migrating."""


class FileLock:
    """An advisory lock beside a database: exclusive while its only process starts, shared for as long as it runs.

    The system drops it with the process, however that ends. On Windows it does nothing, and nobody is ever alone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self.alone = False
        """Whether no other process had the lock when `take` got it."""

    def take(self) -> None:
        """Exclusively if nobody else holds it, else shared. StorageFault if another process never lets go."""
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        if sys.platform == "win32":
            return
        self.alone = _locked(self._file, fcntl.LOCK_EX)
        deadline = time.monotonic() + SECONDS
        while not self.alone and not _locked(self._file, fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise StorageFault("Another process keeps the database to itself.")
            time.sleep(0.02)

    def share(self) -> None:
        """Lets other processes start."""
        if sys.platform != "win32" and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


if sys.platform != "win32":

    def _locked(file: int, kind: int) -> bool:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
