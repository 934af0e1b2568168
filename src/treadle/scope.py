"""Who asks, and in which tenant. Every store method takes a Scope and shows only that scope's rows."""

from __future__ import annotations

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller; `id` is stable across credentials."""

    id: str
    attributes: dict[str, tuple[str, ...]] = {}


class Scope(msgspec.Struct, frozen=True):
    """A principal acting inside a tenant: what a store turns into a predicate."""

    tenant: str
    principal: Principal

    @property
    def owner(self) -> str:
        return self.principal.id


LOCAL = Scope(tenant="default", principal=Principal(id="local"))
"""The one user of a server without authentication."""
