"""Runs the HTTP server: takes the port, starts the app, says where it is."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from collections.abc import Awaitable, Callable

import uvicorn
from starlette.types import ASGIApp

from treadle import __version__
from treadle.cli import embedded
from treadle.cli.announced import GRACEFUL_SECONDS, LAST_WORDS_SECONDS, AnnouncedServer, Starting
from treadle.cli.check import data_folder
from treadle.cli.hints import Hints, look_around
from treadle.cli.invocation import with_port
from treadle.cli.protocol import Protocol
from treadle.cli.websocket import PING_SECONDS, PONG_SECONDS, WebSocketProtocol, largest_message
from treadle.errors import ServerError
from treadle.settings import Settings, is_loopback

_BACKLOG = 2048
# Longer than the 5 s after which HTTP clients drop an idle connection, so that the client is the one who closes it.
_IDLE_SECONDS = 75
_SWITCH_SECONDS = 0.001


class CannotListen(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def run(settings: Settings, called: str, model: str = "") -> int:
    """Serves until told to stop. `called` is what the user typed, for advice; `model` is one to try, if known."""
    try:
        sockets = listen(settings.server.host, settings.server.port, called)
    except CannotListen as reason:
        return _refused(str(reason))
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    if settings.log_level != "debug":
        for chatty in ("httpx2", "mcp", "websockets"):  # a line for each message to a server of tools, say
            logging.getLogger(chatty).setLevel(logging.WARNING)
    if settings.store.url.startswith("postgres"):
        # A transaction there is several waits of a thread, which would be 5 ms late each time while the loop is busy.
        sys.setswitchinterval(_SWITCH_SECONDS)
    from treadle.app import create_app  # the whole server hangs below it

    folder = data_folder(settings)
    try:
        if folder.wrong:
            raise OSError(f"{folder.path}: {folder.text}")
        app = create_app(settings)
    except (ServerError, OSError, ValueError) as fault:
        for one in sockets:
            one.close()
        return _refused(str(fault))
    return serve_app(app, settings, sockets, lambda: look_around(settings, model))


def serve_app(
    app: ASGIApp, settings: Settings, sockets: list[socket.socket], look: Callable[[], Awaitable[Hints]]
) -> int:
    """Serves an app on sockets that listen already; the exit code. The sockets are closed at the end.

    What `look` finds is printed under the banner when it is known.
    """
    starting = Starting(app)
    config = uvicorn.Config(
        starting,
        loop="uvloop" if sys.platform != "win32" else "asyncio",
        http=Protocol,
        ws=WebSocketProtocol,
        ws_max_size=largest_message(settings.server.max_body_bytes),
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=GRACEFUL_SECONDS + LAST_WORDS_SECONDS,
    )
    url = base_url(settings.server.host, sockets[0].getsockname()[1])

    async def tell() -> None:
        hints = await look()
        for line in hints.warnings:
            print(line, file=sys.stderr, flush=True)
        print("\n".join(hints.first_request).replace("{url}", url), flush=True)

    server = AnnouncedServer(config, lambda: print(banner(settings, url), flush=True), tell)
    try:
        with starting.speaking():
            server.run(sockets=sockets)
    except KeyboardInterrupt:
        # uvicorn has shut down in order and hands the signal on.
        return 130
    except SystemExit:
        # The app could not start; uvicorn would end with a code of its own.
        return _refused(starting.why or "the server cannot start")
    finally:
        for one in sockets:
            one.close()
    return 0 if server.started else 1


def listen(host: str, port: int, called: str) -> list[socket.socket]:
    """Listening sockets for every address of `host`. CannotListen if one cannot be had."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotListen(f"`{host}` is not an address of this machine: {error.strerror}") from error
    sockets: list[socket.socket] = []
    for family, _, _, _, address in dict.fromkeys(found):
        one = socket.socket(family, socket.SOCK_STREAM)
        sockets.append(one)
        try:
            if sys.platform != "win32":
                # There the option means something else: it would let two programs share a port.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # With port 0 the first address chooses and the others follow.
            chosen = sockets[0].getsockname()[1] if len(sockets) > 1 else port
            one.bind((address[0], chosen, *address[2:]))
            one.listen(_BACKLOG)
            one.setblocking(False)
        except OSError as error:
            for taken in sockets:
                taken.close()
            raise CannotListen(_advice(error, host, port, called)) from error
    return sockets


def base_url(host: str, port: int) -> str:
    """The address to use from this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{shown}:{port}"


def banner(settings: Settings, url: str) -> str:
    """What a newcomer needs to know once the server is up."""
    lines = [f"Treadle {__version__} is ready at {url}/v1 (Ctrl-C stops it)"]
    offered = [f"{name} ({provider.url})" for name, provider in settings.models.items()]
    offered += [] if embedded.why_not(settings) else ["local (embedded)"]
    lines.append(f"  models   {', '.join(offered) or 'none: see docs/models.md'}")
    lines.append(f"  data     {settings.data_dir}")
    if not is_loopback(settings.server.host):
        every = settings.server.host in ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on
        where = "all interfaces" if every else settings.server.host
        lines.append(f"  OPEN     listens on {where} and asks for no key: whoever reaches the port can use it all")
    return "\n".join(lines)


def _advice(error: OSError, host: str, port: int, called: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use by another program (another Treadle?). "
            f"Stop it, or take another port: {with_port(called, port + 1 if port < 65535 else 0)}"
        )
    if error.errno == errno.EACCES:
        return f"port {port} needs special rights. Take one above 1023: {with_port(called, 8321)}"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"`{host}` is not an address of this machine"
    return f"cannot listen on {host}, port {port}: {error.strerror or error}"


def _refused(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 1
