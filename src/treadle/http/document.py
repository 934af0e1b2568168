"""The OpenAPI document of endpoints: their declarations and the wire types put together.

Loaded when the document is first asked for; nothing at the start of the server needs it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from treadle import __version__
from treadle.errors import ErrorEnvelope
from treadle.http import unions
from treadle.http.endpoints import Endpoint
from treadle.http.replies import JSON
from treadle.http.schemas import Components, Schema
from treadle.wire.chat import StreamOptions as ChatStreamOptions
from treadle.wire.events import Event
from treadle.wire.files import FileList
from treadle.wire.lists import ItemList, ResponseList
from treadle.wire.prompts import PromptList
from treadle.wire.vector_stores import VectorStoreFileList, VectorStoreList

EVENTS = "text/event-stream"
ANYTHING = "*/*"
_NAMES: dict[object, str] = {
    ItemList: "ItemList",
    ResponseList: "ResponseList",
    FileList: "FileList",
    PromptList: "PromptList",
    VectorStoreList: "VectorStoreList",
    VectorStoreFileList: "VectorStoreFileList",
    ChatStreamOptions: "ChatStreamOptions",
}
_PLACEHOLDER = re.compile(r"\{(\w+)(?::\w+)?\}")
_ABOUT = """\
A self-hosted agent server that speaks the OpenAI Responses API.

Every answer has an `x-request-id`. Every error is an `ErrorEnvelope`, also where no operation is to blame: 404 for a
path that there is not, 405 for a method that a path does not have.
"""
_REASONS = {
    400: "The request is not valid; `param` names the part.",
    401: "The model server refuses the key it is configured with.",
    403: "A web page or a host name from elsewhere, or a refusal of the model server.",
    404: "There is no such thing, or not for you.",
    409: "Another response is being made in the conversation.",
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is of another type than the operation takes, or compressed in an unknown way.",
    424: "An MCP server cannot be used; the message names it and the cause.",
    429: "The model server is at its limit; `Retry-After` may say for how long.",
    500: "A fault of this server; the message has a number under which the log has the details.",
    502: "The model server cannot be reached, failed, or broke off.",
    503: "State cannot be read or written, or something is not installed.",
    504: "The model server did not answer in time.",
}
_REQUEST_ID: Schema = {
    "name": "x-request-id",
    "in": "header",
    "description": "An id of your own for the request, given back with the answer; 1 to 128 printable characters.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
}


def openapi(endpoints: Sequence[Endpoint]) -> Schema:
    """The OpenAPI 3.1 document of the endpoints."""
    sent = [one.body for one in endpoints if one.body is not None and one.takes == JSON]
    components = Components(_NAMES, [*unions.SENT, *sent])
    unions.define(components)
    components.schemas["ResponseStreamEvent"] = {
        "description": "One event of a stream, as the JSON of its `data` line; the `event` line repeats the `type`.",
        **components.schema(Event),
    }
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        path = _PLACEHOLDER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Treadle", "version": __version__, "description": _ABOUT, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.schemas.items())),
            "responses": {str(status): _error(reason, components) for status, reason in _REASONS.items()},
            "parameters": {"x-request-id": _REQUEST_ID},
            "headers": {"x-request-id": {"description": "Names the request in the log.", "schema": {"type": "string"}}},
        },
    }


def _operation(endpoint: Endpoint, components: Components) -> Schema:
    found: Schema = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": list(endpoint.tags or (_tag(endpoint.path),)),
        "parameters": _parameters(endpoint),
        "responses": _responses(endpoint, components),
    }
    if endpoint.body is not None:
        schema = components.schema(endpoint.body) if endpoint.takes == JSON else endpoint.body
        found["requestBody"] = {"required": endpoint.body_required, "content": {endpoint.takes: {"schema": schema}}}
    return found


def _parameters(endpoint: Endpoint) -> list[Schema]:
    named: list[Schema] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PLACEHOLDER.findall(endpoint.path)
    ]
    for parameter in endpoint.parameters:
        entry: Schema = {"name": parameter.name, "in": parameter.where, "schema": parameter.schema}
        if parameter.description:
            entry["description"] = parameter.description
        named.append(entry)
    return [*named, {"$ref": "#/components/parameters/x-request-id"}]


def _responses(endpoint: Endpoint, components: Components) -> Schema:
    statuses = {403, 500, *endpoint.statuses}
    if endpoint.parameters or endpoint.body is not None:
        statuses.add(400)
    if endpoint.body is not None:
        statuses.add(408)
    if endpoint.passes_refusals:
        statuses |= {401, 429, 502, 504}
    refusals: Schema = {str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}
    if endpoint.passes_refusals:
        refusals["4XX"] = _error("Another refusal of the model server, with its own status.", components)
    return {str(endpoint.success): _success(endpoint, components)} | refusals


def _success(endpoint: Endpoint, components: Components) -> Schema:
    if endpoint.success == 204:
        return {"description": "Done.", "headers": _headers()}
    schema: Schema = {"type": "string"} if endpoint.produces != JSON else {"type": "object"}
    if endpoint.produces == ANYTHING:
        schema["format"] = "binary"
    content = {endpoint.produces: {"schema": schema if endpoint.result is None else components.schema(endpoint.result)}}
    if endpoint.streams:
        content[EVENTS] = {"schema": _event(endpoint.events)}
    return {"description": "Done.", "headers": _headers(), "content": content}


def _event(data: Schema | None) -> Schema:
    """One event of a stream: its lines as properties. The document describes each, not the stream as a whole."""
    told: Schema = {"type": "string", "contentMediaType": JSON, "contentSchema": data or {"type": "object"}}
    properties: Schema = {"event": {"type": "string"}, "data": {"anyOf": [{"const": "[DONE]"}, told]}}
    return {
        "type": "object",
        "description": "One event; `[DONE]` is the last.",
        "properties": properties,
        "required": ["data"],
    }


def _error(reason: str, components: Components) -> Schema:
    content = {JSON: {"schema": components.schema(ErrorEnvelope)}}
    return {"description": reason, "headers": _headers(), "content": content}


def _headers() -> Schema:
    return {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}


def _tag(path: str) -> str:
    """What an operation belongs to: the first part of its path below the version."""
    return path.split("/")[2] if path.startswith("/v1/") else "document"
