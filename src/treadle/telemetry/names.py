"""The names of spans, attributes and metrics, all in one place: those of the conventions, and ours beside them.

https://opentelemetry.io/docs/specs/semconv/gen-ai/ is still in development, so names may yet move. What has no name
there begins with `treadle.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
CONVERSATION = "gen_ai.conversation.id"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 -- a kind of token, not a secret
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL = "gen_ai.tool.call.id"
DATA_SOURCE = "gen_ai.data_source.id"
MCP_METHOD = "mcp.method.name"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS = "http.response.status_code"
ERROR = "error.type"

STATUS = "treadle.response.status"
"""As in the response: completed, incomplete, failed or cancelled."""
CANCELLED = "treadle.cancelled"
"""Nobody waited for the end."""
PARAMETER = "treadle.parameter"
DECLARED_TOOL = "treadle.tool.type"
"""As in the declaration; `web_search` under all its names."""
KIND = "treadle.kind"
SERVER_LABEL = "treadle.mcp.server_label"
FOUND = "treadle.search.results"
BROKEN_STORES = "treadle.search.broken_stores"

PROVIDERS: Mapping[str, str] = MappingProxyType(
    {
        "azure": "azure.ai.openai",
        "bedrock": "aws.bedrock",
        "gemini": "gcp.gemini",
        "mistral": "mistral_ai",
        "watsonx": "ibm.watsonx.ai",
    }
)
"""What the conventions call a vendor, where that differs from our vendor table."""

TOOL_TYPES: Mapping[str, str] = MappingProxyType(
    {"file_search": "datastore", "web_search": "extension", "mcp": "extension"}
)
"""By `Binding.kind`; every other tool is a `function`."""

METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"})
"""Callers may write anything for a method; what is not known is `_OTHER`."""
