"""The official OpenAI client bound to the app inside the process: no socket, no port, no second process."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from treadle.client.life import Background, StartFailed, running
from treadle.ports import ServerTool
from treadle.settings import Settings, load

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

__all__ = ["StartFailed", "async_client", "client"]

BASE_URL = "http://treadle.localhost/v1"
"""Leads nowhere: the transport hands every request to the app."""


@asynccontextmanager
async def async_client(
    source: Settings | str | Path | None = None,
    *,
    app: ASGIApp | None = None,
    started: bool = False,
    server_tools: Mapping[str, ServerTool] | None = None,
    api_key: str = "in-process",
    **overrides: object,
) -> AsyncIterator[AsyncOpenAI]:
    """An `openai.AsyncOpenAI` for a server that lives as long as the block.

        async with async_client(data_dir="./agent") as client:
            await client.responses.create(model="ollama/llama3.2", input="Hello")

    `source` is a configuration file or finished settings; without one, what `treadle serve` would find. `overrides`
    are settings by name, nested as in the file, and win over file and environment. `app` binds to an app of your own
    instead; `started` says that its lifespan is run elsewhere. `server_tools` are as in `treadle.app.create_app`.

    ImportError without the `client` extra, InvalidSettings, or StartFailed if the app cannot start.
    """
    _require_openai()
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    from treadle.client.transport import AsyncAppTransport

    served = _served(app, source, server_tools, overrides)
    async with _life(served, started):
        http = DefaultAsyncHttpxClient(transport=AsyncAppTransport(served))
        async with AsyncOpenAI(api_key=api_key, base_url=BASE_URL, http_client=http) as made:
            yield made


@contextmanager
def client(
    source: Settings | str | Path | None = None,
    *,
    app: ASGIApp | None = None,
    server_tools: Mapping[str, ServerTool] | None = None,
    api_key: str = "in-process",
    **overrides: object,
) -> Iterator[OpenAI]:
    """An `openai.OpenAI` for a server that lives as long as the block, in a thread with an event loop of its own.

        with client(data_dir="./agent") as openai:
            openai.responses.create(model="ollama/llama3.2", input="Hello")

    It may be used from several threads at once, and inside a running event loop (which it blocks, like any
    synchronous client). Arguments and errors are those of `async_client`; the lifespan of `app` is always run here.
    """
    _require_openai()
    from openai import DefaultHttpxClient, OpenAI

    from treadle.client.transport import AppTransport

    with Background("treadle-client") as background:
        served = _served(app, source, server_tools, overrides)
        life = running(served)
        background.run(life.__aenter__())
        try:
            http = DefaultHttpxClient(transport=AppTransport(served, background))
            with OpenAI(api_key=api_key, base_url=BASE_URL, http_client=http) as made:
                yield made
        finally:
            background.run(life.__aexit__(None, None, None))


def _served(
    app: ASGIApp | None,
    source: Settings | str | Path | None,
    server_tools: Mapping[str, ServerTool] | None,
    overrides: Mapping[str, object],
) -> ASGIApp:
    if app is not None:
        if source is not None or server_tools is not None or overrides:
            raise TypeError("An app has its settings and tools already; leave out what would make another.")
        return app
    from treadle.app import create_app  # the whole server hangs below it

    if isinstance(source, Settings):
        if overrides:
            raise TypeError("Overrides go with a file or the environment, not with finished settings.")
        settings = source
    else:
        settings = load(source, overrides=overrides).require()
    return create_app(settings, server_tools=server_tools)


def _life(app: ASGIApp, started: bool) -> AbstractAsyncContextManager[None]:
    return nullcontext() if started else running(app)


def _require_openai() -> None:
    try:
        importlib.import_module("openai")
    except ImportError:
        raise ImportError(
            "The in-process client needs the `openai` package: pip install 'openai>=2'", name="openai"
        ) from None
