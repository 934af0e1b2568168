"""`treadle check`: validates the configuration and tries everything it names."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from treadle.cli import collector, embedded
from treadle.cli.faults import report, warn
from treadle.cli.names import misnamed
from treadle.cli.probe import Listing, list_providers
from treadle.settings import Fault, Loaded, Origin, Provider, Settings, load


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
    warn(loaded.notes)
    faults: list[Fault] = []
    for finding in findings(loaded.settings):
        if finding.wrong:
            faults.append(Fault(finding.path, finding.text, _origin(loaded, finding.path)))
        else:
            print(f"ok     {finding.path}: {finding.text}")
    sys.stdout.flush()
    return report(faults)


def findings(settings: Settings) -> Iterator[Finding]:
    """Tries the folder, the store, models and their names, the collector of traces, the parts, and what tools reach."""
    folder = data_folder(settings)
    yield folder
    file = settings.store.url
    if ("://" not in file or file.startswith("sqlite:///")) and not (folder.wrong and not file):
        yield store(settings)  # others are tried with the parts below
    alone = not settings.models or settings.default_model.startswith("local/")
    if settings.local.enabled:
        missing = embedded.why_not(settings)
        yield Finding("local", missing or "the embedded model is installed", wrong=bool(missing) and alone)
    listings = asyncio.run(list_providers(settings.models))
    for name, provider in settings.models.items():
        yield judge(name, provider, listings[name])
    for fault in misnamed(settings, listings):
        yield Finding(fault.path, fault.message, wrong=True)
    if settings.telemetry.enabled:
        yield telemetry(settings)
    yield from composition(settings, usable_folder=not folder.wrong)


def composition(settings: Settings, *, usable_folder: bool) -> Iterator[Finding]:
    """Puts the server together, and tries the addresses, the search service and the connectors of its tools."""
    from treadle.app.trial import try_app  # the whole server hangs below it

    for trial in asyncio.run(try_app(settings, compose=usable_folder)):
        yield Finding(trial.path, trial.text, trial.wrong)


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
    """SQLite takes a write in the folder where the database is, or will be."""
    url = settings.store.url
    path, file = ("store.url", Path(url.removeprefix("sqlite:///"))) if url else ("data_dir", None)
    folder = file.parent if file else Path(settings.data_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as trial:
            connection = sqlite3.connect(Path(trial) / "check.sqlite3")
            try:
                # Network folders often cannot do what write-ahead logging needs.
                mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
                connection.execute("create table trial (x integer)")
            finally:
                connection.close()
    except (OSError, sqlite3.Error) as error:
        return Finding(path, f"SQLite does not work in {folder}: {error}", wrong=True)
    if mode != "wal":
        return Finding(path, f"SQLite cannot use write-ahead logging in {folder}", wrong=True)
    if file is not None and file.is_dir():
        return Finding(path, f"{file} is a folder, not a file", wrong=True)
    return Finding("store", f"SQLite works in {folder if file else 'the data folder'}")


def telemetry(settings: Settings) -> Finding:
    """The collector takes traces."""
    given = settings.telemetry
    if not given.endpoint:
        return Finding("telemetry", "on; the variables of the exporter say where the collector is")
    fault = collector.ask(given.endpoint, given.headers)
    if fault:
        return Finding("telemetry.endpoint", f"{given.endpoint} {fault}", wrong=True)
    return Finding("telemetry", f"{given.endpoint} takes traces")


def _origin(loaded: Loaded, path: str) -> Origin:
    """Where the setting was written; for a part of a list, where the list was; for a section, its first setting."""
    default = Origin("default")
    found = loaded.origins.get(path) or loaded.origins.get(path.partition("[")[0])
    below = (origin for name, origin in loaded.origins.items() if name.startswith(f"{path}.") and origin != default)
    return found or next(below, default)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
