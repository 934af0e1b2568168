"""Tries what the settings name beside models: the composition itself, addresses, the search service, connectors."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Iterator

import msgspec

from treadle.access.netguard import OutgoingGuard, parse_entry
from treadle.app import Services
from treadle.app.files import blobs_of
from treadle.app.outside import connector_of, open_guard, open_pool
from treadle.app.plugins import OpenPlugins
from treadle.errors import RemoteFault, ServerError, StorageFault, ToolFault
from treadle.models.upstream import open_session
from treadle.plugins import SEARCH, BrokenPlugin
from treadle.ports import Blobs, RemoteServer, SearchQuery
from treadle.settings import Connector, Settings
from treadle.store.connect import is_postgres, look
from treadle.tools.mcp.pool import McpPool

SEARCH_SECONDS = 10.0
"""How long the search service may take; the server itself gives it a little more."""
_OBJECT_SECONDS = 30.0
_QUERY = "weather"
"""Something that every search service finds something for."""
_NAMED = re.compile(r"`([a-z_.]+)`:?\s+")


class Trial(msgspec.Struct, frozen=True):
    """What trying one thing gave. `path` names its setting; only `wrong` is a fault."""

    path: str
    text: str
    wrong: bool = False


async def try_app(settings: Settings, *, compose: bool = True, search_seconds: float = SEARCH_SECONDS) -> list[Trial]:
    """All of it, the slow ones together. Nothing is stored and no port is opened. `compose` needs the data folder."""
    found = [*_names(settings.connectors)]
    entries = [*_entries(settings.outgoing.allow)]
    found += entries or await _looked_up(settings.outgoing.allow)
    if compose and not entries:
        found += await _composed(settings)
    waits: list[Awaitable[list[Trial]]] = []
    if is_postgres(settings.store.url):
        waits.append(_database(settings))
    if settings.web_search.kind:
        waits.append(_search(settings, search_seconds))
    if settings.plugins.allowed and not entries:
        waits.append(_plugins(settings))
    if settings.connectors:
        waits.append(_connectors(settings))
    if settings.files.url and not settings.files.blobs:
        waits.append(_objects(settings))
    for part in await asyncio.gather(*waits):
        found += part
    return found


async def _database(settings: Settings) -> list[Trial]:
    """A look at the Postgres that the store is in."""
    try:
        return [Trial("store", await look(settings.store.url))]
    except StorageFault as fault:
        return [_blamed(fault.message, "store.url")]
    except ValueError:
        return []  # the composition told of it


async def _composed(settings: Settings) -> list[Trial]:
    """The parts fit together, with their keys, tools and exporters."""
    try:
        services = Services(settings, {})
    except (ServerError, OSError, ValueError) as fault:
        return [_blamed(str(fault), "app")]
    await services.observing.close()
    return []


def _entries(allow: list[str]) -> Iterator[Trial]:
    for entry in allow:
        try:
            parse_entry(entry)
        except ValueError as error:
            yield _blamed(str(error), "outgoing.allow")


async def _looked_up(allow: list[str]) -> list[Trial]:
    """What the entries admit. A name that nobody knows may be one for later, so it is no fault."""
    if not allow:
        return []
    guard = OutgoingGuard(allow)

    async def unknown(host: str, port: int) -> str:
        try:
            await guard.resolve(host, port)
        except ToolFault:
            return host
        return ""

    hosts = [(entry.host, entry.port or 443) for entry in map(parse_entry, allow) if entry.host]
    missing = [host for host in await asyncio.gather(*(unknown(*host) for host in hosts)) if host]
    note = f"; no address is known of {', '.join(missing)}" if missing else ""
    return [Trial("outgoing.allow", f"admits {', '.join(allow)}{note}")]


async def _search(settings: Settings, seconds: float) -> list[Trial]:
    """One real search."""
    given = settings.web_search
    plugins = OpenPlugins(settings)
    async with open_session() as session:
        try:
            for offer in plugins.wanted():
                if offer.group == SEARCH:
                    await plugins.open_one(offer, session)
            assert plugins.search is not None
            async with asyncio.timeout(seconds):
                results = await plugins.search.search(SearchQuery(text=_QUERY, limit=1))
        except TimeoutError:
            path = "web_search.url" if given.url else "web_search"
            return [Trial(path, f"{given.kind} did not answer within {seconds:g} s", wrong=True)]
        except ServerError as fault:
            return [_blamed(fault.message, _part(given.url, fault.message))]
        except BrokenPlugin as broken:
            return [Trial(f"plugins.{given.kind}", str(broken), wrong=True)]
        finally:
            await plugins.close()
    said = "answers a search" if results else f"answers, but finds nothing for '{_QUERY}'"
    return [Trial("web_search", f"{given.kind} {said}")]


async def _plugins(settings: Settings) -> list[Trial]:
    """Each is opened once and closed again. A search service is tried by searching."""
    found: list[Trial] = []
    plugins = OpenPlugins(settings)
    async with open_session() as session:
        try:
            for offer in plugins.wanted():
                if offer.group == SEARCH:
                    continue
                path = f"plugins.{offer.name}"
                try:
                    await plugins.open_one(offer, session)
                except BrokenPlugin as broken:
                    found.append(Trial(path, str(broken), wrong=True))
                else:
                    found.append(Trial(path, f"{offer.distribution} {offer.version} opens ({offer.group})"))
        except ServerError as fault:
            found.append(_blamed(fault.message, "plugins"))
        finally:
            await plugins.close()
    return found


async def _objects(settings: Settings) -> list[Trial]:
    """Whether the bucket can be listed. Nothing in it is touched."""
    try:
        blobs, close = blobs_of(settings, _unplugged)
    except ServerError as fault:
        return [] if "files.url" in fault.message else [_blamed(fault.message, "files")]  # the composition told of it
    try:
        async with asyncio.timeout(_OBJECT_SECONDS):
            async for _ in blobs.stored(0):
                break
    except TimeoutError:
        return [Trial("files.url", f"no answer within {_OBJECT_SECONDS:g} s", wrong=True)]
    except ServerError as fault:
        return [_blamed(fault.message, "files.url")]
    finally:
        await close()
    return [Trial("files.url", f"{settings.files.url} answers")]


def _unplugged() -> Blobs:
    raise NotImplementedError("blobs of plug-ins are not tried")


def _part(url: str, message: str) -> str:
    if "`web_search.key`" in message:
        return "web_search.key"
    away = "cannot be reached" in message or "`web_search.url`" in message
    return "web_search.url" if url and away else "web_search"


def _names(connectors: list[Connector]) -> Iterator[Trial]:
    times = Counter(connector.connector_id for connector in connectors)
    for number, connector in enumerate(connectors):
        if times[connector.connector_id] > 1:
            times[connector.connector_id] = 0  # said once
            text = f"`{connector.connector_id}` is the name of more than one connector"
            yield Trial(f"connectors[{number}].connector_id", text, wrong=True)


async def _connectors(settings: Settings) -> list[Trial]:
    """Each lists its tools once. Addresses of the configuration need no permission, so the guard admits nothing."""
    pool = open_pool(settings, open_guard([]))
    try:
        tried = (_connector(pool, number, one) for number, one in enumerate(settings.connectors))
        return list(await asyncio.gather(*tried))
    finally:
        await pool.close()


async def _connector(pool: McpPool, number: int, given: Connector) -> Trial:
    path = f"connectors[{number}]"
    if not given.command and not given.url:
        return Trial(path, f"`{given.connector_id}` has neither `url` nor `command`", wrong=True)
    connector = connector_of(given)
    server = RemoteServer(given.connector_id, connector.url, connector.headers, by_operator=True)
    try:
        tools = await pool.list_tools(server)
    except RemoteFault as fault:
        if fault.authentication and not given.headers:
            return Trial(path, f"{fault.message} Requests have to bring an `authorization`.")
        part = "headers" if fault.authentication else "command" if given.command else "url"
        return Trial(f"{path}.{part}", fault.message, wrong=True)
    except ServerError as fault:
        return Trial(path, fault.message, wrong=True)
    count = f"{len(tools)} tool{'' if len(tools) == 1 else 's'}"
    return Trial(path, f"{given.connector_id} answers and offers {count}")


def _blamed(message: str, path: str) -> Trial:
    """A fault under the setting that it names at its beginning, which need not be said twice."""
    named = _NAMED.match(message)
    return Trial(named[1] if named else path, message[named.end() :] if named else message, wrong=True)
