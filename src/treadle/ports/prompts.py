"""Port to the store of prompts."""

from __future__ import annotations

from typing import Protocol

import msgspec

from treadle.ports.store import Order
from treadle.scope import Scope


class PromptRow(msgspec.Struct, kw_only=True):
    """One version of a prompt. `created_at` is that of the version, in Unix seconds."""

    id: str
    version: int
    created_at: int
    text: str
    variables: list[str]
    is_default: bool = True


class PromptPage(msgspec.Struct):
    prompts: list[PromptRow]
    has_more: bool


class Prompts(Protocol):
    """Prompts of a scope and their versions, which count from 1 and never change.

    What belongs to another scope is not there. StorageFault when the database cannot be reached.
    """

    async def create(self, scope: Scope, row: PromptRow) -> None:
        """Adds a prompt with its first version."""
        ...

    async def get(self, scope: Scope, prompt_id: str, version: int | None) -> PromptRow | None:
        """A version, or the default one. None if there is no such prompt or version."""
        ...

    async def page(self, scope: Scope, *, after: str | None, limit: int, order: Order) -> PromptPage:
        """The default versions. InvalidRequest (`param="after"`) for an unknown cursor."""
        ...

    async def versions(
        self, scope: Scope, prompt_id: str, *, after: int | None, limit: int, order: Order
    ) -> PromptPage | None:
        """The versions beyond `after`, which need not exist. None if there is no such prompt."""
        ...

    async def update(self, scope: Scope, row: PromptRow) -> PromptRow | None:
        """Adds `row` as the version after `row.version`, as the default one if it says so. InvalidRequest
        (`param="version"`) if that is not the latest: of several at once exactly one succeeds. None if there is no such
        prompt."""
        ...

    async def choose(self, scope: Scope, prompt_id: str, version: int) -> PromptRow | None:
        """Makes a version the default one. None if there is no such prompt or version."""
        ...

    async def delete(self, scope: Scope, prompt_id: str) -> bool:
        """Removes the prompt with all its versions."""
        ...
