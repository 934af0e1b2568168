"""Which server a command uses: the one that is named, the one that runs where the configuration says, or none, and
then the app works in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
import msgspec

from treadle.cli.channel import AppChannel, Channel, HttpChannel, Unreachable, open_session
from treadle.cli.check import data_folder
from treadle.cli.invocation import program
from treadle.cli.printable import printable
from treadle.cli.stores import Refused
from treadle.errors import ServerError
from treadle.settings import Settings, load
from treadle.settings.remote import KEY_VARIABLE, URL_VARIABLE, remote_of

_LOOK_SECONDS = 1.0


class CannotWork(Exception):
    """There is no way to the API. Each argument is a line that says why."""


class Wish(msgspec.Struct, frozen=True):
    """What the command line says of the server; None where it does not."""

    url: str | None
    api_key: str | None
    config: str | None


class _Health(msgspec.Struct):
    status: str


@asynccontextmanager
async def reach(wish: Wish) -> AsyncIterator[Channel]:
    """The way to the API, open for the block. CannotWork if there is none."""
    remote = remote_of()
    key = remote.key if wish.api_key is None else wish.api_key
    if not (key.isascii() and key.isprintable()):
        raise CannotWork(f"{KEY_VARIABLE if wish.api_key is None else '--api-key'}: no key has such characters")
    named = wish.url or remote.url
    if named:
        url = checked_url(named, "--url" if wish.url else URL_VARIABLE)
        async with open_session() as session:
            yield HttpChannel(session, url, key)
        return
    loaded = load(wish.config)
    if loaded.faults:
        raise CannotWork(*map(str, loaded.faults))
    settings = loaded.settings
    url = await running_at(settings)
    if url:
        async with open_session() as session:
            yield HttpChannel(session, url, key)
        return
    async with in_process(settings) as channel:
        yield channel


def checked_url(given: str, origin: str) -> str:
    """A server's address without /v1 and slashes at its end. CannotWork if it cannot be one."""
    try:
        parts = urlsplit(given.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    else:
        usable = usable and not (parts.query or parts.fragment or parts.username)
    if not usable:
        raise CannotWork(f"{origin}: expected the address of a server, such as http://127.0.0.1:8321")
    return given.strip().rstrip("/").removesuffix("/v1").rstrip("/")


async def running_at(settings: Settings) -> str:
    """The configured address if a server answers there, else nothing."""
    from treadle.cli.serving import base_url  # uvicorn hangs below it, which a named server does not need

    if not settings.server.port:
        return ""
    url = base_url(settings.server.host, settings.server.port)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_LOOK_SECONDS)) as session,
            session.get(f"{url}/v1/health", allow_redirects=False) as answer,
        ):
            health = msgspec.json.decode(await answer.content.read(1024), type=_Health)
            return url if answer.status == 200 and health.status == "OK" else ""
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        return ""


def why(fault: CannotWork | Unreachable | Refused) -> list[str]:
    """The lines that tell a user why the API did not do what was asked."""
    lines = [str(line) for line in fault.args]
    if isinstance(fault, Refused):
        # A server cannot know how its user calls us, nor how a key is given here.
        lines = [fault.message.replace("`treadle setup`", f"`{program()} setup`")]
        if fault.status == 401:
            lines[0] += f" (give a key with --api-key or {KEY_VARIABLE})"
    return [printable(line) for line in lines]


@asynccontextmanager
async def in_process(settings: Settings) -> AsyncIterator[Channel]:
    """The app over the data folder. Servers that have the folder too do not mind."""
    from treadle.app import create_app  # the whole server hangs below it
    from treadle.client.life import StartFailed, running

    folder = data_folder(settings)
    if folder.wrong:
        raise CannotWork(f"{folder.path}: {folder.text}")
    try:
        app = create_app(settings)
    except (ServerError, OSError, ValueError) as fault:
        raise CannotWork(str(fault)) from fault
    try:
        async with running(app):
            yield AppChannel(app, f"in this process, with the data in {settings.data_dir}")
    except StartFailed as fault:
        raise CannotWork(str(fault)) from fault
