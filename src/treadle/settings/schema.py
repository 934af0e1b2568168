"""The shape of the configuration: every setting with its type, its default and what it means."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from treadle.models.vendors import GENERIC, find_vendor
from treadle.models.vendors import vendor as vendor_row
from treadle.ports import Capabilities, Json
from treadle.settings.background import Background
from treadle.settings.batches import Batches
from treadle.settings.compaction import Compaction
from treadle.settings.files import Files
from treadle.settings.guardrails import Guardrails
from treadle.settings.plugins import Plugins
from treadle.settings.telemetry import Telemetry
from treadle.settings.webhooks import Webhooks
from treadle.settings.websocket import WebSocket
from treadle.wire.extensions import RetrieveFirst
from treadle.wire.retrieval import SearchMode
from treadle.wire.templates import ANNOTATION, CONTEXT, FOOTER, HEADER

Doc = msgspec.Meta
_SECRET: dict[str, object] = {"secret": True}


def default_data_dir() -> str:
    """The platform's place for a program's data, for example ~/.local/share/treadle on Linux."""
    import platformdirs  # costs start-up time that `--version` and `--help` should not pay

    return platformdirs.user_data_dir("treadle", appauthor=False)


class Server(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How the HTTP server listens."""

    host: Annotated[
        str, Doc(description="Address to listen on. Anything but this machine needs `allow_unauthenticated`.")
    ] = "127.0.0.1"
    port: Annotated[int, Doc(description="Port to listen on; 0 takes a free one.", ge=0, le=65535)] = 8321
    allow_unauthenticated: Annotated[
        bool,
        Doc(
            description="Listen beyond this machine although no one has to show a key. "
            "Whoever reaches the port can then use your models and read what is stored."
        ),
    ] = False
    max_body_bytes: Annotated[int, Doc(description="Largest request body that is accepted, in bytes.", ge=1024)] = (
        67108864
    )
    body_timeout_seconds: Annotated[
        float,
        Doc(
            description="A request body that is not there after this long is given up; an upload of files when next to "
            "nothing has come for a minute.",
            gt=0,
        ),
    ] = 300.0
    keep_alive_seconds: Annotated[
        float,
        Doc(description="A stream that is silent this long sends a comment, so that proxies keep it open.", gt=0),
    ] = 15.0
    cors_origins: Annotated[
        list[str],
        Doc(description="Web pages allowed to call the server from a browser, such as https://app.example; * for all."),
    ] = []
    allowed_hosts: Annotated[
        list[str],
        Doc(
            description="Domains this server is called by, for example behind a proxy; * for any. On a loopback "
            "address other domains are refused, so that no web page can get here by DNS."
        ),
    ] = []


class Store(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Where responses and conversations are kept."""

    url: Annotated[
        str,
        Doc(
            description="SQLite file, as a path or as sqlite:///path; or postgresql://user:password@host/database. "
            "Empty: `treadle.sqlite3` in the data folder."
        ),
    ] = ""
    connections: Annotated[
        int, Doc(description="Connections to Postgres that this process keeps at most.", ge=1, le=100)
    ] = 8


class CapabilityOverrides(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Corrections to what the vendor table says about a provider; what is left out stays as in the table."""

    tools: Annotated[bool | None, Doc(description="The models can call tools.")] = None
    images: Annotated[bool | None, Doc(description="The models take images.")] = None
    files: Annotated[bool | None, Doc(description="The models take files such as PDF.")] = None
    parallel_flag: Annotated[bool | None, Doc(description="The server takes `parallel_tool_calls`.")] = None
    developer_role: Annotated[
        bool | None, Doc(description="The server knows the `developer` role; else it is sent as `system`.")
    ] = None
    system_anywhere: Annotated[
        bool | None,
        Doc(description="System messages may stand anywhere; else they are merged into one at the front."),
    ] = None
    schema_with_tools: Annotated[
        bool | None, Doc(description="The models still call tools when an output schema is given with them.")
    ] = None
    reasoning_back: Annotated[
        Literal["", "reasoning", "reasoning_content"] | None,
        Doc(description="Field in which the reasoning of a tool round is sent back; empty: it is not sent."),
    ] = None
    reasoning_effort: Annotated[bool | None, Doc(description="The server takes `reasoning_effort`.")] = None
    context_window: Annotated[
        Annotated[int, Doc(ge=1)] | None,
        Doc(description="Tokens that fit into the models, prompt and answer together."),
    ] = None


class Provider(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One server of language models. Its models are called `<section name>/<model>`."""

    kind: Annotated[str, Doc(description="The dialect the server speaks. Empty: as the vendor table says.")] = ""
    vendor: Annotated[
        str,
        Doc(
            description="Row of the vendor table. Empty: the one with the section's name, "
            "else `openai_chat`, any server that speaks chat completions."
        ),
    ] = ""
    url: Annotated[
        str, Doc(description="Base of the server's API, usually ending in /v1. Empty: as in the vendor table.")
    ] = ""
    key: Annotated[
        str, Doc(description="API key. Empty: taken from the vendor's variable if it is set.", extra=_SECRET)
    ] = ""
    headers: Annotated[
        dict[str, str], Doc(description="Headers to send along with every request to it.", extra=_SECRET)
    ] = {}
    models: Annotated[list[str], Doc(description="Models to offer. Empty: all that the server lists.")] = []
    timeout_seconds: Annotated[
        float, Doc(description="A request fails when the server sends nothing for this long.", gt=0)
    ] = 600.0
    connect_timeout_seconds: Annotated[float, Doc(description="Longest wait for a connection.", gt=0)] = 10.0
    retries: Annotated[
        int, Doc(description="Further attempts when the server is busy or unreachable, before its first byte.", ge=0)
    ] = 2
    extra_body: Annotated[
        dict[str, Json], Doc(description="JSON fields to add to every request to it, such as a vendor's own switches.")
    ] = {}
    capabilities: Annotated[
        CapabilityOverrides, Doc(description="Corrections to what the vendor table says it can do.")
    ] = msgspec.field(default_factory=CapabilityOverrides)
    api_version: Annotated[str, Doc(description="Azure only: the dated API version, for addresses that need one.")] = ""


class Embeddings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Which model turns texts into vectors."""

    default: Annotated[
        str, Doc(description="Model for embeddings when a request names none. Empty: the embedded one.")
    ] = ""


class ResponsesSettings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How a response is produced."""

    max_infer_iters: Annotated[
        int, Doc(description="Calls to the model within one response, unless the request says otherwise.", ge=1)
    ] = 10
    visible_after_seconds: Annotated[
        float, Doc(description="A response that runs longer than this can be fetched while it runs.", ge=0)
    ] = 1.0
    max_parallel_tools: Annotated[int, Doc(description="Server tools run at the same time in one response.", ge=1)] = 8
    tool_timeout_seconds: Annotated[
        float, Doc(description="A server tool that has not answered by then has failed.", gt=0)
    ] = 120.0
    max_seconds: Annotated[
        float, Doc(description="A response that has run this long begins no further call to the model.", gt=0)
    ] = 3600.0
    moderation_endpoint: Annotated[
        str,
        Doc(
            description="Address that judges texts for guardrails, such as https://api.openai.com/v1/moderations: it "
            "takes {input} and answers {results: [{flagged, categories}]}."
        ),
    ] = ""
    moderation_headers: Annotated[
        dict[str, str], Doc(description="Headers to send along with every request to it.", extra=_SECRET)
    ] = {}


class Local(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The small models that run inside the process, for trying things out."""

    model_path: Annotated[
        str, Doc(description="GGUF file of the embedded language model. Empty: the one `treadle setup` installs.")
    ] = ""
    embedding_model_path: Annotated[
        str, Doc(description="ONNX file of the embedded embedding model. Empty: the one `treadle setup` installs.")
    ] = ""
    enabled: Annotated[bool, Doc(description="Offer the embedded models.")] = True


class Outgoing(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Addresses that callers and models name: files, images, pages, servers of tools."""

    allow: Annotated[
        list[str],
        Doc(
            description="Hosts and networks outside the public internet that callers may name, such as nas.lan, "
            "*.corp.example, 192.168.1.20:8080, 10.0.0.0/8."
        ),
    ] = []
    timeout_seconds: Annotated[float, Doc(description="Longest time to get what a caller names.", gt=0)] = 30.0
    max_bytes: Annotated[
        int, Doc(description="Largest body that is taken from such an address, in bytes.", ge=1024)
    ] = 20971520


class WebSearch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The search service behind the `web_search` tool."""

    kind: Annotated[
        str,
        Doc(
            description="The search service: searxng, brave, tavily, exa, duckduckgo, or the name of a plug-in. Empty: "
            "none, and models are told so when they search."
        ),
    ] = ""
    url: Annotated[
        str, Doc(description="Its address. Needed for SearXNG; empty for the others: the service's own.")
    ] = ""
    key: Annotated[str, Doc(description="Its key. Brave, Tavily and Exa need one.", extra=_SECRET)] = ""
    limit: Annotated[int, Doc(description="Results that a search gives the model.", ge=1, le=50)] = 8


class Mcp(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Servers of tools that speak the Model Context Protocol."""

    require_approval: Annotated[
        Literal["always", "never"], Doc(description="Whether a tool asks the client when its declaration says nothing.")
    ] = "never"
    fatal: Annotated[
        bool, Doc(description="A server whose tools cannot be listed fails the response; else the others go on.")
    ] = False
    untrusted: Annotated[
        bool, Doc(description="Show the model what servers named by requests give as data, never as instructions.")
    ] = True
    connect_timeout_seconds: Annotated[float, Doc(description="Longest wait for a server to be ready.", gt=0)] = 15.0
    idle_seconds: Annotated[float, Doc(description="A session that nobody uses is closed after this long.", gt=0)] = (
        300.0
    )
    max_sessions: Annotated[int, Doc(description="Sessions open at the same time.", ge=1)] = 64


class Connector(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An MCP server that requests name by `connector_id`."""

    connector_id: Annotated[str, Doc(description="The name, such as `mcp::deepwiki`.", min_length=1)]
    connector_type: Annotated[Literal["mcp"], Doc(description="Always `mcp`.")] = "mcp"
    url: Annotated[str, Doc(description="Its address. Empty with `command`.")] = ""
    command: Annotated[
        list[str], Doc(description="A program to start instead, with its arguments; it speaks over its standard input.")
    ] = []
    env: Annotated[dict[str, str], Doc(description="Environment of that program.", extra=_SECRET)] = {}
    server_label: Annotated[str, Doc(description="The label under which it is shown. Empty: as the request says.")] = ""
    description: Annotated[str, Doc(description="What it is for.")] = ""
    headers: Annotated[
        dict[str, str], Doc(description="Headers to send to it; they never leave the server.", extra=_SECRET)
    ] = {}
    untrusted: Annotated[bool, Doc(description="Show the model what it gives as data, never as instructions.")] = False


class Knowledge(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Vector stores: how files are indexed and searched."""

    workers: Annotated[int, Doc(description="Files that are indexed at the same time.", ge=1, le=64)] = 2
    wait_seconds: Annotated[
        float,
        Doc(
            description="Attaching a file waits this long for it to be indexed before it answers `in_progress`; "
            "0: not at all.",
            ge=0,
            le=60,
        ),
    ] = 2.0
    chunk_tokens: Annotated[
        int, Doc(description="Size of the pieces that documents are cut into, in tokens.", ge=100, le=4096)
    ] = 800
    chunk_overlap_tokens: Annotated[
        int, Doc(description="Tokens that a piece shares with the one before, at most half of its size.", ge=0, le=2048)
    ] = 400
    search_mode: Annotated[
        SearchMode, Doc(description="How a search looks that does not say: by meaning, by words, or both.")
    ] = "hybrid"
    ranker: Annotated[
        Literal["rrf", "weighted"],
        Doc(description="How a hybrid search that does not say puts its two lists together: by ranks or by scores."),
    ] = "weighted"
    embedding_batch: Annotated[int, Doc(description="Pieces that are embedded in one call.", ge=1, le=2048)] = 32
    embedding_retries: Annotated[
        int, Doc(description="Further attempts when the embedding model is busy or away.", ge=0, le=10)
    ] = 3
    extract_seconds: Annotated[float, Doc(description="Longest time that reading one document may take.", gt=0)] = 300.0
    extract_memory_mb: Annotated[
        int, Doc(description="Most memory that reading one document may take, in MB.", ge=128)
    ] = 1024
    extractor: Annotated[
        str, Doc(description="The plug-in that reads documents. Empty: what comes with Treadle reads them.")
    ] = ""
    index: Annotated[
        str,
        Doc(
            description="Where the pieces and their vectors are kept: sqlite, pgvector, qdrant, or the name of a "
            "plug-in."
        ),
    ] = "sqlite"
    index_url: Annotated[
        str,
        Doc(description="Address of the index. Empty for `sqlite`: `vectors.sqlite3` in the data folder."),
    ] = ""
    index_key: Annotated[str, Doc(description="Key of a Qdrant server.", extra=_SECRET)] = ""
    cache_mb: Annotated[
        int, Doc(description="Memory for vectors of stores that were searched lately, in MB.", ge=1)
    ] = 512


class FileSearch(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The `file_search` tool: how what was found is shown to a model."""

    retrieve_first: Annotated[
        RetrieveFirst,
        Doc(
            description="Search with the user's question before the model is asked, unless the request says otherwise. "
            "auto: for models that cannot call tools."
        ),
    ] = "auto"
    max_tokens: Annotated[
        int, Doc(description="Tokens of passages that one search may show a model.", ge=200, le=60000)
    ] = 8000
    first_tokens: Annotated[int, Doc(description="The same for a model that cannot call tools.", ge=200, le=60000)] = (
        1000
    )
    header_template: Annotated[
        str, Doc(description="What stands before the passages. May hold {query} and {num_chunks}.")
    ] = HEADER
    context_template: Annotated[
        str,
        Doc(
            description="How a passage is shown. Must hold {text}; may hold {index}, {file_id}, {filename}, {score} "
            "and {metadata}, which are page, section and attributes."
        ),
    ] = CONTEXT
    footer_template: Annotated[
        str, Doc(description="What stands behind the passages. May hold {query} and {num_chunks}.")
    ] = FOOTER
    annotation_template: Annotated[
        str,
        Doc(
            description="How the model is asked to cite, last of all. May hold {index} and {file_id}, those of the "
            "first passage for an example. Empty: it is not asked."
        ),
    ] = ANNOTATION


class Rerank(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The model that orders search results anew."""

    model: Annotated[
        str,
        Doc(
            description="Model that a search uses whose ranker is `neural` and that names none; "
            "its server must offer /v1/rerank."
        ),
    ] = ""


class Settings(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Everything that can be configured."""

    data_dir: Annotated[
        str, Doc(description="Folder for the SQLite file, blobs and the secret key. It is created when missing.")
    ] = msgspec.field(default_factory=default_data_dir)
    server: Annotated[Server, Doc(description="How the HTTP server listens.")] = msgspec.field(default_factory=Server)
    store: Annotated[Store, Doc(description="Where responses and conversations are kept.")] = msgspec.field(
        default_factory=Store
    )
    secret_key: Annotated[
        str,
        Doc(
            description="Key that encrypts reasoning handed to clients. Empty: made once and kept in the data folder. "
            "Needed, and the same for all processes, where `store.url` is Postgres.",
            extra=_SECRET,
        ),
    ] = ""
    models: Annotated[dict[str, Provider], Doc(description="The servers of language models, each under a name.")] = {}
    aliases: Annotated[dict[str, str], Doc(description="Further names for models: the name, then the model id.")] = {}
    default_model: Annotated[str, Doc(description="Model to use when a request names none.")] = ""
    embeddings: Annotated[Embeddings, Doc(description="Which model turns texts into vectors.")] = msgspec.field(
        default_factory=Embeddings
    )
    responses: Annotated[ResponsesSettings, Doc(description="How a response is produced.")] = msgspec.field(
        default_factory=ResponsesSettings
    )
    guardrails: Annotated[Guardrails, Doc(description="What may not be said.")] = msgspec.field(
        default_factory=Guardrails
    )
    compaction: Annotated[Compaction, Doc(description="Conversations that grow long.")] = msgspec.field(
        default_factory=Compaction
    )
    background: Annotated[Background, Doc(description="Responses made in the background.")] = msgspec.field(
        default_factory=Background
    )
    websocket: Annotated[WebSocket, Doc(description="Responses over WebSocket.")] = msgspec.field(
        default_factory=WebSocket
    )
    outgoing: Annotated[Outgoing, Doc(description="Addresses that callers and models name.")] = msgspec.field(
        default_factory=Outgoing
    )
    web_search: Annotated[WebSearch, Doc(description="The search service behind the `web_search` tool.")] = (
        msgspec.field(default_factory=WebSearch)
    )
    local: Annotated[Local, Doc(description="The small models inside the process.")] = msgspec.field(
        default_factory=Local
    )
    mcp: Annotated[Mcp, Doc(description="Servers of tools.")] = msgspec.field(default_factory=Mcp)
    files: Annotated[Files, Doc(description="Uploaded files.")] = msgspec.field(default_factory=Files)
    knowledge: Annotated[Knowledge, Doc(description="Vector stores.")] = msgspec.field(default_factory=Knowledge)
    file_search: Annotated[FileSearch, Doc(description="The `file_search` tool.")] = msgspec.field(
        default_factory=FileSearch
    )
    rerank: Annotated[Rerank, Doc(description="The model that orders search results anew.")] = msgspec.field(
        default_factory=Rerank
    )
    connectors: Annotated[list[Connector], Doc(description="Configured servers of tools.")] = []
    batches: Annotated[Batches, Doc(description="Many requests from a file.")] = msgspec.field(default_factory=Batches)
    webhooks: Annotated[Webhooks, Doc(description="Who is told of ends.")] = msgspec.field(default_factory=Webhooks)
    plugins: Annotated[Plugins, Doc(description="Code of others inside this server.")] = msgspec.field(
        default_factory=Plugins
    )
    telemetry: Annotated[Telemetry, Doc(description="Traces and metrics.")] = msgspec.field(default_factory=Telemetry)
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Doc(description="How much the server writes to its log.")
    ] = "info"


def capabilities_of(provider: Provider) -> Capabilities:
    """What the vendor table says about the provider, with the provider's corrections applied."""
    row = find_vendor(provider.vendor) or vendor_row(GENERIC)
    corrections = {
        name: value for name, value in msgspec.structs.asdict(provider.capabilities).items() if value is not None
    }
    return msgspec.structs.replace(row.capabilities, **corrections)
