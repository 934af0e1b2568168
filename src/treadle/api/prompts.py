"""Prompts and their versions."""

from __future__ import annotations

import time

from treadle.engine.prompting import check_placeholders
from treadle.errors import NotFound
from treadle.ids import new_prompt_id
from treadle.ports import Order, PromptRow, Prompts
from treadle.scope import Scope
from treadle.wire.prompts import CreatePrompt, Prompt, PromptDeleted, PromptList, UpdatePrompt


class PromptService:
    """The use cases of `/v1/prompts`."""

    def __init__(self, prompts: Prompts) -> None:
        self._store = prompts

    async def create(self, scope: Scope, request: CreatePrompt) -> Prompt:
        row = _new(new_prompt_id(), 1, request)
        await self._store.create(scope, row)
        return _shown(row)

    async def get(self, scope: Scope, prompt_id: str, version: int | None) -> Prompt:
        return _shown(await self._found(scope, prompt_id, version))

    async def list(self, scope: Scope, *, after: str | None, limit: int, order: Order) -> PromptList:
        page = await self._store.page(scope, after=after, limit=limit, order=order)
        data = [_shown(row) for row in page.prompts]
        first, last = (data[0].id, data[-1].id) if data else ("", "")
        return PromptList(data=data, first_id=first, last_id=last, has_more=page.has_more)

    async def versions(
        self, scope: Scope, prompt_id: str, *, after: int | None, limit: int, order: Order
    ) -> PromptList:
        """The cursors of this list are versions: the prompts in it all have the same id."""
        page = await self._store.versions(scope, prompt_id, after=after, limit=limit, order=order)
        if page is None:
            raise _missing(prompt_id)
        data = [_shown(row) for row in page.prompts]
        first, last = (str(data[0].version), str(data[-1].version)) if data else ("", "")
        return PromptList(data=data, first_id=first, last_id=last, has_more=page.has_more)

    async def update(self, scope: Scope, prompt_id: str, request: UpdatePrompt) -> Prompt:
        row = _new(prompt_id, request.version, request)
        row.is_default = request.set_as_default is not False
        added = await self._store.update(scope, row)
        if added is None:
            raise _missing(prompt_id)
        return _shown(added)

    async def set_default(self, scope: Scope, prompt_id: str, version: int) -> Prompt:
        chosen = await self._store.choose(scope, prompt_id, version)
        return _shown(chosen or await self._found(scope, prompt_id, version))

    async def delete(self, scope: Scope, prompt_id: str) -> PromptDeleted:
        if not await self._store.delete(scope, prompt_id):
            raise _missing(prompt_id)
        return PromptDeleted(prompt_id)

    async def _found(self, scope: Scope, prompt_id: str, version: int | None) -> PromptRow:
        row = await self._store.get(scope, prompt_id, version)
        if row is not None:
            return row
        if version is not None and await self._store.get(scope, prompt_id, None) is not None:
            raise NotFound(f"Version {version} of prompt '{prompt_id}' not found.", param="version")
        raise _missing(prompt_id)


def _new(prompt_id: str, version: int, request: CreatePrompt | UpdatePrompt) -> PromptRow:
    variables = request.variables or []
    check_placeholders(request.prompt, variables)
    return PromptRow(
        id=prompt_id, version=version, created_at=int(time.time()), text=request.prompt, variables=variables
    )


def _shown(row: PromptRow) -> Prompt:
    return Prompt(
        id=row.id,
        created_at=row.created_at,
        prompt_id=row.id,
        prompt=row.text,
        version=row.version,
        variables=row.variables,
        is_default=row.is_default,
    )


def _missing(prompt_id: str) -> NotFound:
    return NotFound(f"Prompt '{prompt_id[:128]}' not found.", param="prompt_id")
