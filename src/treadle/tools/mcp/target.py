"""What a session needs to know: where to, how, and within which limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from treadle.ports import AddressGuard

Kind = Literal["http", "http-handshake", "sse", "stdio"]
"""How to speak to a server: streamable HTTP, the same with the handshake of protocols before 2026, SSE, or pipes."""


@dataclass(frozen=True)
class Target:
    """A server to connect to; `command` and its environment are set for servers behind pipes."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    guard: AddressGuard | None = None
    command: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Limits:
    """Seconds for each step, and the most bytes of one answer."""

    connect: float
    listing: float
    call: float
    max_body: int
