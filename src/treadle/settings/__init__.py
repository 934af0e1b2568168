"""The configuration: its shape, where values come from, and every fault in it at once.

Nothing else in the package reads the environment or the configuration file.
"""

from treadle.settings.load import Flag, InvalidSettings, Loaded, is_loopback, load
from treadle.settings.schema import (
    CapabilityOverrides,
    Connector,
    Embeddings,
    FileSearch,
    Knowledge,
    Local,
    Mcp,
    Provider,
    Rerank,
    ResponsesSettings,
    Server,
    Settings,
    Store,
    capabilities_of,
)
from treadle.settings.tree import Fault, Origin

__all__ = [
    "CapabilityOverrides",
    "Connector",
    "Embeddings",
    "Fault",
    "FileSearch",
    "Flag",
    "InvalidSettings",
    "Knowledge",
    "Loaded",
    "Local",
    "Mcp",
    "Origin",
    "Provider",
    "Rerank",
    "ResponsesSettings",
    "Server",
    "Settings",
    "Store",
    "capabilities_of",
    "is_loopback",
    "load",
]
