"""Attaching files to vector stores, however a request names them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from treadle.api.store_access import missing_store
from treadle.api.watches import Watches
from treadle.errors import InvalidRequest, ServerError
from treadle.ids import plausible
from treadle.ports import FileBatchRow, FileRow, Files, NewStoreFile, Router, StoreFileRow, StoreFiles
from treadle.scope import Scope
from treadle.wire.vector_stores import (
    AttachFile,
    ContextualChunking,
    StaticChunking,
    StaticRules,
    WantedChunking,
    chunking_of,
)

OwnChunking = StaticChunking | ContextualChunking


class Ingester(Protocol):
    """Whoever indexes what is attached."""

    @property
    def watches(self) -> Watches: ...

    def wake(self) -> None:
        """Files may be waiting."""
        ...


class Attachments:
    """What attaching one file, the files of a new store, and a batch have in common."""

    def __init__(
        self,
        files: StoreFiles,
        uploads: Files,
        ingester: Ingester,
        router: Router,
        *,
        rules: StaticRules,
        default_model: str = "",
        wait_seconds: float = 2.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`rules` are the sizes of `auto`; `default_model` writes contexts when a request names no model;
        `settled` waits up to `wait_seconds`."""
        self._files = files
        self._uploads = uploads
        self._ingester = ingester
        self._router = router
        self._rules = rules
        self._default_model = default_model
        self._wait = wait_seconds
        self._clock = clock

    async def upload(self, scope: Scope, file_id: str) -> FileRow | None:
        """The caller's File of this id."""
        return (await self._uploads.find(scope, [file_id])).get(file_id)

    async def chunking(self, wanted: WantedChunking | None, at: str) -> OwnChunking:
        """The strategy with nothing left open, the model that writes contexts included. InvalidRequest, naming the
        field below `at`, for what cannot be."""
        chosen = chunking_of(wanted, self._rules, at)
        if not isinstance(chosen, ContextualChunking):
            return chosen
        param = f"{at}.contextual.model_id"
        model = chosen.contextual.model_id or self._default_model
        if not model:
            raise InvalidRequest(
                f"Missing required parameter: '{param}'. No default model is configured.",
                param=param,
                code="missing_required_parameter",
            )
        try:
            await self._router.route(model)
        except ServerError as fault:
            fault.param = param
            raise
        return ContextualChunking(contextual=msgspec.structs.replace(chosen.contextual, model_id=model))

    async def attach(
        self,
        scope: Scope,
        store_id: str,
        wanted: Sequence[tuple[AttachFile, OwnChunking]],
        batch: FileBatchRow | None = None,
    ) -> list[StoreFileRow]:
        """Attaches files; those that the caller does not have are noted as failed. NotFound if there is no such store
        any more."""
        uploads = await self._uploads.find(scope, [file.file_id for file, _ in wanted])
        now = int(self._clock())
        new = []
        for file, chunking in wanted:
            upload = uploads.get(file.file_id)
            new.append(
                NewStoreFile(
                    file=file.file_id,
                    filename=file.file_id if upload is None else upload.filename,
                    created_at=now,
                    attributes=file.attributes,
                    chunking=chunking,
                    error=("invalid_file", f"File '{file.file_id}' not found.") if upload is None else None,
                )
            )
        rows = await self._files.attach(scope, store_id, new, batch)
        if rows is None:
            raise missing_store(store_id)
        self._ingester.wake()
        return rows

    async def settled(self, scope: Scope, store_id: str, wanted: Sequence[tuple[AttachFile, OwnChunking]]) -> None:
        """`attach`, with some time for small files to be indexed, so that whoever attaches one rarely has to poll."""
        with self._ingester.watches.over(store_id, [file.file_id for file, _ in wanted]) as watch:
            rows = await self.attach(scope, store_id, wanted)
            watch.forget_all_but((store_id, row.file) for row in rows if row.status == "in_progress")
            await watch.wait(self._wait)


def checked_ids(ids: Sequence[str], at: str) -> Sequence[str]:
    """The ids of a list. InvalidRequest for one that cannot be an id at all."""
    for number, file_id in enumerate(ids):
        checked_id(file_id, f"{at}[{number}]")
    return ids


def checked_id(file_id: str, at: str) -> str:
    if not plausible(file_id):
        raise InvalidRequest(f"Invalid value for '{at}': this is not the id of a file.", param=at)
    return file_id
