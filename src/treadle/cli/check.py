"""`treadle check`: validates the configuration and tries everything it names."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from treadle.cli import embedded
from treadle.cli.faults import report
from treadle.cli.probe import Listing, list_providers
from treadle.settings import Fault, Loaded, Origin, Provider, Settings, load

_CONNECT_SECONDS = 5
_POSTGRES_PORT = 5432


class Finding(msgspec.Struct, frozen=True):
    """What trying one thing gave. Only `wrong` makes the check fail; otherwise the text is worth knowing."""

    path: str
    text: str
    wrong: bool = False


def check(config: str | None) -> int:
    """Prints a line for each thing tried; the exit code, which is 1 if anything is wrong."""
    loaded = load(config)
    if loaded.faults:
        return report(loaded.faults)
    print(f"ok     configuration: {loaded.file or 'no file; defaults and environment'}")
    faults: list[Fault] = []
    for finding in findings(loaded.settings):
        if finding.wrong:
            faults.append(Fault(finding.path, finding.text, _origin(loaded, finding.path)))
        else:
            print(f"ok     {finding.path}: {finding.text}")
    sys.stdout.flush()
    return report(faults)


def findings(settings: Settings) -> Iterator[Finding]:
    """Tries the folder, the store, the embedded model and every provider."""
    folder = data_folder(settings)
    yield folder
    if not folder.wrong or settings.store.url:
        yield store(settings)
    if settings.local.enabled:
        missing = embedded.why_not(settings)
        alone = not settings.models or settings.default_model.startswith("local/")
        yield Finding("local", missing or "the embedded model is installed", wrong=bool(missing) and alone)
    listings = asyncio.run(list_providers(settings.models))
    for name, provider in settings.models.items():
        yield judge(name, provider, listings[name])


def judge(name: str, provider: Provider, listing: Listing) -> Finding:
    """What a provider's answer means for its section of the configuration."""
    path = f"models.{name}"
    if listing.status in (404, 405) and provider.models:
        return Finding(path, f"{provider.url} answers; it lists no models, {len(provider.models)} are configured")
    if listing.fault:
        part = "key" if listing.status in (401, 403) else "url"
        return Finding(f"{path}.{part}", f"{provider.url} {listing.fault}", wrong=True)
    missing = [model for model in provider.models if model not in listing.models]
    if missing:
        return Finding(path, f"{provider.url} answers; it does not list {', '.join(missing)}, which may still work")
    if not listing.models:
        return Finding(path, f"{provider.url} answers but offers no models yet")
    return Finding(path, f"{provider.url} answers and offers {_count(len(listing.models), 'model')}")


def data_folder(settings: Settings) -> Finding:
    """The data folder exists, or can be made, and can be written to."""
    folder = Path(settings.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("data_dir", f"{folder} cannot be written to: {error.strerror or error}", wrong=True)
    return Finding("data_dir", f"{folder} can be written to")


def store(settings: Settings) -> Finding:
    """The database takes a write (SQLite) or a connection (Postgres)."""
    if settings.store.url.startswith(("postgresql://", "postgres://")):
        return _reachable(settings.store.url)
    if settings.store.url:
        return Finding("store.url", "must be empty, for SQLite in the data folder, or postgresql://…", wrong=True)
    try:
        with tempfile.TemporaryDirectory(dir=settings.data_dir) as folder:
            connection = sqlite3.connect(Path(folder) / "check.sqlite3")
            try:
                # Network folders often cannot do what write-ahead logging needs.
                mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
                connection.execute("create table trial (x integer)")
            finally:
                connection.close()
    except (OSError, sqlite3.Error) as error:
        return Finding("data_dir", f"SQLite does not work in {settings.data_dir}: {error}", wrong=True)
    if mode != "wal":
        return Finding("data_dir", f"SQLite cannot use write-ahead logging in {settings.data_dir}", wrong=True)
    return Finding("store", "SQLite works in the data folder")


def _reachable(url: str) -> Finding:
    """Whether something listens where the database should be. Signing in is left to the server's start."""
    try:
        address = urlsplit(url)
        where = (address.hostname or "localhost", address.port or _POSTGRES_PORT)
        socket.create_connection(where, timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        return Finding("store.url", f"the database cannot be reached: {error}", wrong=True)
    return Finding("store", f"the Postgres server at {where[0]}:{where[1]} answers")


def _origin(loaded: Loaded, path: str) -> Origin:
    return loaded.origins.get(path, Origin("default"))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
