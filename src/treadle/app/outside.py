"""What the settings say about reaching out on behalf of tools: the guard, connectors, sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.access.netguard import OutgoingGuard
from treadle.engine.sources import RemoteRules
from treadle.errors import InvalidRequest
from treadle.ports import Connector
from treadle.settings import Connector as ConnectorSettings
from treadle.settings import Settings
from treadle.tools.mcp.pool import McpPool, StdioCommand


def open_guard(allow: Sequence[str]) -> OutgoingGuard:
    """InvalidRequest for an entry that is none, so that starting ends with one line about it."""
    try:
        return OutgoingGuard(allow)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def connector_of(given: ConnectorSettings) -> Connector:
    return Connector(
        id=given.connector_id,
        url=f"stdio:{given.connector_id}" if given.command else given.url,
        label=given.server_label,
        description=given.description,
        headers=tuple(given.headers.items()),
        untrusted=given.untrusted,
    )


def remote_rules(settings: Settings, connectors: Mapping[str, Connector], guard: OutgoingGuard) -> RemoteRules:
    return RemoteRules(
        connectors=connectors,
        guard=guard,
        default_approval=settings.mcp.require_approval,
        untrusted=settings.mcp.untrusted,
        fatal=settings.mcp.fatal,
    )


def open_pool(settings: Settings, guard: OutgoingGuard) -> McpPool:
    """Sessions with MCP servers. Needs the running loop; whoever opens it closes it."""
    mcp = settings.mcp
    commands = {
        connector.connector_id: StdioCommand(
            connector.command[0], tuple(connector.command[1:]), tuple(connector.env.items())
        )
        for connector in settings.connectors
        if connector.command
    }
    return McpPool(
        guard,
        stdio=commands,
        connect_seconds=mcp.connect_timeout_seconds,
        list_seconds=mcp.connect_timeout_seconds,
        call_seconds=settings.responses.tool_timeout_seconds,
        idle=mcp.idle_seconds,
        sessions=mcp.max_sessions,
    )
