"""The composition root, and the only file that sees everything: builds, wires, starts and stops.

The caches of a process, all of which may be lost at any time: the model lists of the router (one per provider), the
vocabularies of the token counter (two), the embedded models (two), and the responses that are running.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from starlette.types import ASGIApp

from treadle.access.sealing import KeySealer, load_key
from treadle.api.batch_answers import LineAnswers
from treadle.api.compaction import CompactionService
from treadle.api.connectors import ConnectorService
from treadle.api.conversations import ConversationService
from treadle.api.embeddings import EmbeddingService
from treadle.api.inference import InferenceService
from treadle.api.locks import ConversationLocks
from treadle.api.models import ModelService
from treadle.api.prompts import PromptService
from treadle.api.responses import LEASE_SECONDS, ResponseService
from treadle.api.tasks import Tasks
from treadle.app.background import Background
from treadle.app.batching import Batching, Notifying
from treadle.app.context import compaction_rules, open_counter
from treadle.app.files import FileStorage
from treadle.app.guarding import Moderation
from treadle.app.jobs import open_jobs, shared
from treadle.app.knowledge import Knowledge
from treadle.app.levels import Levels
from treadle.app.observing import Observing
from treadle.app.outside import connector_of, open_guard, open_pool, remote_rules
from treadle.app.plugins import OpenPlugins
from treadle.app.sockets import SOCKET_PATHS, responses_socket
from treadle.backends.outgoing import OutgoingSession
from treadle.backends.page_reader import HttpPageReader
from treadle.engine.attachments import Attachments
from treadle.engine.fusion import RankingDefaults
from treadle.engine.prepare import Preparation
from treadle.engine.recent import RecentHistories
from treadle.engine.telling import FileSearchRules
from treadle.errors import StorageFault
from treadle.http.guard import Guard
from treadle.http.openapi import OpenApiRoutes
from treadle.http.routes.admin import AdminRoutes
from treadle.http.routes.connectors import ConnectorRoutes
from treadle.http.routes.conversations import ConversationRoutes
from treadle.http.routes.inference import InferenceRoutes
from treadle.http.routes.prompts import PromptRoutes
from treadle.http.routes.responses import TO_COME, ResponseRoutes
from treadle.http.server import Server, with_cors
from treadle.models.embedded import EmbeddedModel
from treadle.models.local import LocalServer
from treadle.models.minilm import MiniLm
from treadle.models.openai_chat import ChatCompletions, Endpoint
from treadle.models.router import ModelRouter, ProviderEntry
from treadle.models.upstream import open_session
from treadle.models.vendors import EMBEDDED, GENERIC, find_vendor, vendor
from treadle.models.weights import WeightStore
from treadle.ports import Embedder, Observer, ServerTool
from treadle.settings import Provider, Settings, capabilities_of, is_loopback
from treadle.store.approvals import SqlApprovals
from treadle.store.connect import connect
from treadle.store.conversations import SqlConversations
from treadle.store.prompts import SqlPrompts
from treadle.store.responses import SqlResponses
from treadle.tools.mcp.pool import McpPool
from treadle.wire.models import Provider as ShownProvider

log = logging.getLogger("treadle.app")

EMBEDDED_EMBEDDER = "local/all-minilm-l6-v2"
_JOIN_SECONDS = 5.0


def create_app(
    settings: Settings,
    *,
    server_tools: Mapping[str, ServerTool] | None = None,
    observer: Observer | None = None,
) -> ASGIApp:
    """The server as an ASGI app. It opens its files and connections at the lifespan's start.

    `server_tools` are tools to run on the server, by the `type` under which requests declare them. `observer` watches
    instead of what the settings say about telemetry.
    """
    services = Services(settings, server_tools or {}, observer)
    limit, quiet = settings.server.max_body_bytes, settings.server.keep_alive_seconds
    routes = [
        *ResponseRoutes(services.responses, services.background.service, services.compaction, limit, quiet).endpoints(),
        *ConversationRoutes(services.conversations, limit).endpoints(),
        *PromptRoutes(services.prompts, limit).endpoints(),
        *InferenceRoutes(services.inference, services.embeddings, services.models, limit, quiet).endpoints(),
        *AdminRoutes(services.models).endpoints(),
        *ConnectorRoutes(services.connectors).endpoints(),
        *services.files.endpoints(),
        *services.knowledge.endpoints(limit),
        *services.batching.endpoints(limit),
        *services.observing.endpoints(),
    ]
    routes += OpenApiRoutes(routes).endpoints()
    server = settings.server
    hosts = None if not server.allowed_hosts and not is_loopback(server.host) else server.allowed_hosts

    def guard(app: ASGIApp) -> ASGIApp:
        return Guard(app, hosts=hosts, origins=server.cors_origins)

    sockets = dict.fromkeys(SOCKET_PATHS, responses_socket(services.responses, settings))
    served = Server(routes, services.start, services.stop, guard, TO_COME, server.body_timeout_seconds, sockets)
    app = services.observing.around(served)
    return with_cors(app, server.cors_origins)


def create_worker(settings: Settings) -> Services:
    """What does the jobs of servers on the same database, once it is started. ValueError if none can be there."""
    if not shared(settings):
        raise ValueError("`store.url`: a worker apart from its server needs Postgres")
    return Services(settings, {})


class Services:
    """The wired ports. Made without I/O; `start` and `stop` do what needs doing, in order."""

    def __init__(
        self, settings: Settings, server_tools: Mapping[str, ServerTool], observer: Observer | None = None
    ) -> None:
        self.observing = Observing(settings, observer)
        data = Path(settings.data_dir)
        self._settings = settings
        url = settings.store.url or str(data / "treadle.sqlite3")
        self._database = connect(url, connections=settings.store.connections)
        self._plugins = plugins = OpenPlugins(settings)
        self.files = FileStorage(settings, self._database, plugins.blobs)
        self._tasks = Tasks()
        self._renewal: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._pool: McpPool | None = None
        self._outgoing: OutgoingSession | None = None
        self._given_tools = server_tools
        self._tools = dict(server_tools)
        weights = WeightStore(data)
        local = settings.local
        self._local = LocalServer(weights, path=Path(local.model_path) if local.model_path else None)
        self._minilm = MiniLm(weights, path=Path(local.embedding_model_path) if local.embedding_model_path else None)
        embedders: dict[str, Embedder] = {EMBEDDED_EMBEDDER: self._minilm} if local.enabled else {}
        self.router = ModelRouter(
            settings.aliases, embedders, installed=lambda name: name != EMBEDDED_EMBEDDER or self._minilm.installed()
        )
        store, conversations = SqlResponses(self._database), SqlConversations(self._database)
        prompts = SqlPrompts(self._database)
        locks, recent = ConversationLocks(), RecentHistories()
        self._guard = open_guard(settings.outgoing.allow)
        self._moderation = Moderation(settings)
        connectors = {connector.connector_id: connector_of(connector) for connector in settings.connectors}
        self._preparation = preparation = Preparation(
            router=self.router,
            responses=store,
            conversations=conversations,
            prompts=prompts,
            sealer=KeySealer(load_key(settings.secret_key, data)),
            counter=open_counter(settings),
            compaction=compaction_rules(settings),
            guard=self._moderation.rules,
            server_tools=self._tools,
            recent=recent,
            default_model=settings.default_model,
            max_infer_iters=settings.responses.max_infer_iters,
            max_parallel_tools=settings.responses.max_parallel_tools,
            tool_seconds=settings.responses.tool_timeout_seconds,
            max_seconds=settings.responses.max_seconds,
            search_limit=settings.web_search.limit,
            file_search=_file_search(settings),
            attachments=Attachments(self.files.service, max_bytes=settings.files.max_input_bytes),
            approvals=SqlApprovals(self._database),
            rules=remote_rules(settings, connectors, self._guard),
        )
        self.responses = ResponseService(
            preparation,
            store,
            preparation.counter,
            self._tasks,
            visible_after=settings.responses.visible_after_seconds,
            locks=locks,
            observer=self.observing.observer,
        )
        self.compaction = CompactionService(preparation, store)
        jobs, self.queue = open_jobs(settings, self._database)
        self._levels = Levels(jobs)
        self._notifying = Notifying(settings, jobs, self.queue)
        webhooks = self._notifying.webhooks
        self.background = Background(
            settings,
            self._database,
            store,
            jobs,
            self.queue,
            self.responses,
            preparation.sealer,
            self._tasks,
            shared=shared(settings),
            notices=webhooks.of_response,
        )
        self.connectors = ConnectorService(connectors, preparation)
        self.conversations = ConversationService(conversations, locks, recent, self._moderation.rules)
        self.prompts = PromptService(prompts)
        guarded = bool(self._moderation.rules.standing)
        self.inference = InferenceService(self.router, settings.default_model, guarded=guarded)
        embedding_model = settings.embeddings.default or (EMBEDDED_EMBEDDER if local.enabled else "")
        self.embeddings = EmbeddingService(self.router, embedding_model)
        answers = self._answers(embedding_model)
        self.batching = Batching(settings, self._database, self.queue, self.files, answers, webhooks)
        self.knowledge = Knowledge(
            settings,
            self._database,
            self.files,
            self.router,
            plugins,
            embedding_model=embedding_model,
            watched=self.observing.searches,
        )
        self.models = ModelService(self.router, _shown_providers(settings), int(time.time()))

    def _answers(self, embedding_model: str) -> LineAnswers:
        return LineAnswers(
            self.router,
            self.responses,
            self.inference,
            self.embeddings,
            default_model=self._settings.default_model,
            embedding_model=embedding_model,
        )

    async def start(self) -> None:
        """Opens the database and the HTTP client. Raises, with nothing left open, when one of them cannot be used."""
        try:
            await self._open()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> None:
        await self._database.start()
        self._session = open_session()
        for name, provider in self._settings.models.items():
            self.router.add(_entry(name, provider, self._session))
        if self._settings.local.enabled:
            model = EmbeddedModel(self._local, self._session)
            self.router.add(ProviderEntry(EMBEDDED, model, raw=model, closed_list=True, embedded=True))
        await self._start_tools(self._session)
        self.files.start()
        self.knowledge.start()
        self._renewal = asyncio.create_task(self._renew())
        if self._pool is not None:
            self._levels.begin(self.observing.observer, lambda: self.responses.running, self._pool)
        self.background.start()
        await self.queue.start()

    async def _start_tools(self, session: aiohttp.ClientSession) -> None:
        """What reaches out on behalf of tools; needs the running loop."""
        settings = self._settings
        self._pool = open_pool(settings, self._guard)
        outgoing = settings.outgoing
        self._outgoing = OutgoingSession(
            self._guard, timeout_seconds=outgoing.timeout_seconds, max_bytes=outgoing.max_bytes
        )
        self._preparation.remote = self._pool
        self._preparation.reader = HttpPageReader(self._outgoing)
        self._preparation.passages = self.knowledge.passages
        self._preparation.attachments.fetcher = self._outgoing
        self._preparation.attachments.extractor = self.knowledge.extractor
        plugins = self._plugins
        await plugins.open(session, self._given_tools)
        self._preparation.search = plugins.search
        self._tools |= plugins.tools
        for name, model in plugins.models.items():
            self.router.add(ProviderEntry(name, model))

    async def stop(self) -> None:
        """Lets running work end, then closes everything, last opened first."""
        await self.queue.stop()
        await self._notifying.close()
        await self.background.stop()
        if self._renewal is not None:
            self._renewal.cancel()
        await self._tasks.join(_JOIN_SECONDS)
        await self.knowledge.stop()
        await self.files.stop()
        await self._plugins.close()
        await self._moderation.close()
        if self._pool is not None:
            await self._pool.close()
        if self._outgoing is not None:
            await self._outgoing.close()
        if self._session is not None:
            await self._session.close()
        await self._local.stop()
        await self._minilm.close()
        await self._database.close()
        await self.observing.close()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            try:
                await self.responses.renew()
            except StorageFault as fault:
                log.warning("running responses could not be renewed: %s", fault.message)
            except Exception:
                log.exception("running responses could not be renewed, in a way that should not be")
            await self._levels.look()


def _file_search(settings: Settings) -> FileSearchRules:
    given, knowledge = settings.file_search, settings.knowledge
    return FileSearchRules(
        header=given.header_template,
        context=given.context_template,
        footer=given.footer_template,
        annotation=given.annotation_template,
        max_tokens=given.max_tokens,
        first_tokens=given.first_tokens,
        retrieve_first=given.retrieve_first,
        ranking=RankingDefaults(mode=knowledge.search_mode, fusion=knowledge.ranker, model=settings.rerank.model),
    )


def _entry(name: str, provider: Provider, session: aiohttp.ClientSession) -> ProviderEntry:
    row = find_vendor(provider.vendor) or vendor(GENERIC)
    capabilities = capabilities_of(provider)
    if row.name == "openai" and not (urlsplit(provider.url).hostname or "").endswith("openai.com"):
        # OPENAI_BASE_URL leads to some other server, of which nothing is known but the dialect.
        row = vendor(GENERIC)
        capabilities = capabilities_of(_as_generic(provider))
    endpoint = Endpoint(
        name=name,
        url=provider.url,
        key=provider.key,
        key_header=row.key_header,
        headers=provider.headers,
        query={"api-version": provider.api_version} if provider.api_version else {},
        capabilities=capabilities,
        max_tokens_field=row.max_tokens_field,
        drops=row.drops,
        extra_body=provider.extra_body,
        models=tuple(provider.models),
        connect_timeout=provider.connect_timeout_seconds,
        idle_timeout=provider.timeout_seconds,
        retries=provider.retries,
    )
    model = ChatCompletions(endpoint, session)
    return ProviderEntry(name, model, raw=model, closed_list=row.closed_list)


def _as_generic(provider: Provider) -> Provider:
    return Provider(vendor=GENERIC, url=provider.url, capabilities=provider.capabilities)


def _shown_url(url: str) -> str:
    """The address without what may be secret: user and password, and a query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _shown_providers(settings: Settings) -> list[ShownProvider]:
    """The configured providers without anything secret."""
    shown = [
        ShownProvider(
            api="inference",
            provider_id=name,
            provider_type=f"remote::{provider.vendor}",
            config={"url": _shown_url(provider.url)},
            health={"status": "Not Implemented"},
        )
        for name, provider in settings.models.items()
    ]
    if settings.local.enabled:
        shown.append(
            ShownProvider(
                api="inference", provider_id=EMBEDDED, provider_type="inline::local", config={}, health={"status": "OK"}
            )
        )
    kind = settings.knowledge.index
    shown.append(
        ShownProvider(
            api="vector_io",
            provider_id=kind,
            provider_type=f"{'inline' if kind == 'sqlite' else 'remote'}::{kind}",
            config={},
            health={"status": "Not Implemented"},
        )
    )
    return shown
