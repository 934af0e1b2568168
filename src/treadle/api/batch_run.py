"""Running a batch: check its file, run its lines, write the answers into files (contract §14).

It may begin again at any point, in another process: lines that were done stay done, and one that was being run when the
process went away is run once more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec import UNSET, Raw, UnsetType

from treadle.api.batch_lines import BadLine, Line, numbered, read_line
from treadle.api.batch_usage import UsageSum
from treadle.api.batches import Kept, kept, row_of
from treadle.api.webhooks import Telling
from treadle.errors import InvalidRequest, NotFound, ServerError, Stopping, StorageFault, UnknownModel
from treadle.ids import new_file_id, new_id
from treadle.ports import Batches, BatchResult, FileRow, Work
from treadle.scope import Scope
from treadle.wire.base import encode
from treadle.wire.batches import (
    ENDED,
    Batch,
    BatchError,
    BatchErrors,
    BatchStatus,
    BatchUsage,
    LineError,
    LineResponse,
    LineResult,
    RequestCounts,
)
from treadle.wire.webhooks import EventType

log = logging.getLogger("treadle.batches")

MAX_ERRORS = 100
"""Faults of the input file that are told."""
UNEXPECTED = "The server failed; its log says how."
_EVENTS: dict[str, EventType] = {
    "completed": "batch.completed",
    "failed": "batch.failed",
    "expired": "batch.expired",
    "cancelled": "batch.cancelled",
}
_WATCH_SECONDS = 1.0
_PAGE = 100


class Answers(Protocol):
    """What answers a line. ServerError for a refusal."""

    async def check(self, endpoint: str, model: str) -> None:
        """UnknownModel for a name that no provider has; InvalidRequest for none, where there is no default either."""
        ...

    async def answer(self, scope: Scope, endpoint: str, body: bytes) -> bytes:
        """The JSON of the answer."""
        ...


class BatchFiles(Protocol):
    """Where requests come from and answers go."""

    async def open(self, scope: Scope, file_id: str) -> tuple[FileRow, AsyncIterator[bytes]]:
        """NotFound if the caller has no such file."""
        ...

    async def find(self, scope: Scope, ids: list[str]) -> dict[str, FileRow]: ...

    async def write(
        self,
        scope: Scope,
        file_id: str,
        filename: str,
        content: AsyncIterator[bytes],
        purpose: str,
        seconds: int | None,
    ) -> FileRow: ...


class BatchRules(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds, as settings say them."""

    max_requests: int = 50_000
    max_line_bytes: int = 67_108_864
    concurrency: int = 8


class _Over(Exception):
    """The batch is not to go on."""

    def __init__(self, status: BatchStatus) -> None:
        super().__init__(status)
        self.status = status


class BatchRun:
    """Runs batches, each by `run`."""

    def __init__(
        self,
        batches: Batches,
        files: BatchFiles,
        answers: Answers,
        rules: BatchRules,
        webhooks: Telling,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._batches = batches
        self._files = files
        self._answers = answers
        self._rules = rules
        self._webhooks = webhooks
        self._clock = clock

    async def run(self, scope: Scope, batch_id: str) -> None:
        """Brings the batch to its end, and has it told. StorageFault if that cannot be written: then it is to be tried
        again. When cancelled, it stays as it is."""
        row = await self._batches.get(scope, batch_id)
        if row is None:
            return
        found = kept(row)
        if row.status not in ENDED:
            await self._run(scope, found)
            row = await self._batches.get(scope, batch_id)
        if row is not None and (event := _EVENTS.get(row.status)) is not None:
            await self._webhooks.tell(scope, event, batch_id)

    async def __call__(self, work: Work) -> None:
        await self.run(work.job.scope, work.job.id)

    async def _run(self, scope: Scope, found: Kept) -> None:
        try:
            await self._checked(scope, found)
            await self._answered(scope, found)
            end: BatchStatus = "completed"
        except _Over as over:
            end = over.status
        except (StorageFault, Stopping):
            raise
        except BadInput as bad:
            end = "failed"
            found.batch.errors = BatchErrors(data=bad.errors)
        except Exception as error:
            log.exception("batch %s", found.batch.id)
            message = error.message if isinstance(error, ServerError) else UNEXPECTED
            end = "failed"
            found.batch.errors = BatchErrors(data=[BatchError(code="server_error", message=message)])
        await self._finish(scope, found, end)

    # ---------------------------------------------------------------------------------------- the phases

    async def _checked(self, scope: Scope, found: Kept) -> None:
        """Reads all lines once. BadInput if the batch cannot be begun."""
        batch = found.batch
        if batch.status == "cancelling":
            raise _Over("cancelled")
        if batch.status != "validating":
            return
        errors, total, seen, models = list[BatchError](), 0, set[str](), set[str]()
        async with aclosing(self._lines(scope, batch)) as lines:
            async for line in lines:
                if isinstance(line, BadLine):
                    errors.append(line.error)
                else:
                    errors += await self._faults(batch.endpoint, line, seen, models)
                total += 1
                if len(errors) >= MAX_ERRORS:
                    break
                if total > self._rules.max_requests:
                    message = f"A batch has at most {self._rules.max_requests} requests (batches.max_requests)."
                    errors.append(BatchError(code="too_many_requests", message=message))
                    break
        if not total and not errors:
            errors.append(BatchError(code="empty_file", message="The input file has no requests."))
        if errors:
            raise BadInput(errors)
        batch.request_counts = RequestCounts(total=total)
        batch.in_progress_at = int(self._clock())
        if len(models) == 1 and (model := models.pop()):
            batch.model = model
        await self._move(scope, found, "in_progress", {"validating"})

    async def _faults(self, endpoint: str, line: Line, seen: set[str], models: set[str]) -> list[BatchError]:
        errors: list[BatchError] = []
        if line.custom_id in seen:
            message = f"The custom_id '{line.custom_id}' stands on more than one line."
            errors.append(BatchError(code="duplicate_custom_id", message=message, line=line.number, param="custom_id"))
        seen.add(line.custom_id)
        if line.model not in models:
            try:
                await self._answers.check(endpoint, line.model)
                models.add(line.model)
            except InvalidRequest as fault:
                code = "model_not_found" if isinstance(fault, UnknownModel) else "invalid_request"
                errors.append(BatchError(code=code, message=fault.message, line=line.number, param="body.model"))
        return errors

    async def _answered(self, scope: Scope, found: Kept) -> None:
        """Runs the lines that are not done, some at once. _Over if it was cancelled or its time is up."""
        batch = found.batch
        done = await self._batches.done(scope, batch.id)
        lines, reading = self._lines(scope, batch), asyncio.Lock()

        async def work() -> None:
            while True:
                async with reading:
                    line = await anext(lines, None)
                if line is None:
                    return
                if isinstance(line, Line) and line.number not in done:
                    await self._batches.keep(scope, batch.id, await self._result(scope, batch, line))

        watch = asyncio.create_task(self._watch(scope, found))
        workers = [asyncio.create_task(work()) for _ in range(self._rules.concurrency)]
        tasks, running = (watch, *workers), {*workers}
        try:
            while running:
                ended, _ = await asyncio.wait((watch, *running), return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
                running -= ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await lines.aclose()

    async def _watch(self, scope: Scope, found: Kept) -> None:
        """Tells how far the batch is, and ends with _Over when it was cancelled or its time is up."""
        batch = found.batch
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            row = await self._batches.get(scope, batch.id)
            if row is None or row.status == "cancelling":
                raise _Over("cancelled")
            if self._clock() >= batch.expires_at:
                raise _Over("expired")
            if self._count(batch, await self._batches.done(scope, batch.id)):
                await self._batches.change(scope, row_of(found), frozenset({"in_progress"}))

    async def _result(self, scope: Scope, batch: Batch, line: Line) -> BatchResult:
        status, error = 200, None
        try:
            body = await self._answers.answer(scope, batch.endpoint, line.body)
        except (StorageFault, Stopping):
            raise
        except Exception as raised:
            if not isinstance(raised, ServerError):
                log.exception("line %d of batch %s", line.number, batch.id)
            fault = raised if isinstance(raised, ServerError) else ServerError(UNEXPECTED)
            body, status = encode(fault.envelope()), fault.status
            error = LineError(code=fault.code, message=fault.message)
        result = LineResult(
            id=new_id("batch_req"),
            custom_id=line.custom_id,
            response=LineResponse(status_code=status, request_id=new_id("req"), body=Raw(body)),
            error=error,
        )
        return BatchResult(line.number, error is not None, encode(result))

    async def _finish(self, scope: Scope, found: Kept, end: BatchStatus) -> None:
        """Writes the files and then the end."""
        batch = found.batch
        if end == "completed":
            batch.finalizing_at = int(self._clock())
            if not await self._move(scope, found, "finalizing", {"in_progress", "finalizing"}):
                end = "cancelled"
        row = await self._batches.get(scope, batch.id)
        if row is None or row.status in ENDED:
            return
        stored = kept(row).batch
        batch.status, batch.cancelling_at = stored.status, stored.cancelling_at
        done = await self._batches.done(scope, batch.id)
        if end == "expired":
            await self._expire_rest(scope, found, done)
        self._count(batch, done)
        batch.output_file_id = await self._file(scope, found, stored.output_file_id, "output")
        batch.error_file_id = await self._file(scope, found, stored.error_file_id, "error")
        batch.usage = await self._usage(scope, batch.id)
        setattr(batch, f"{end}_at", int(self._clock()))
        if await self._move(scope, found, end, {batch.status}):
            await self._batches.clear(scope, batch.id)
        else:  # it was cancelled just now
            await self._finish(scope, found, "cancelled" if end == "completed" else end)

    async def _expire_rest(self, scope: Scope, found: Kept, done: dict[int, bool]) -> None:
        """The lines that were not run are in the error file, and say so."""
        error = LineError(code="batch_expired", message="This request was not run before the batch expired.")
        batch = found.batch
        async with aclosing(self._lines(scope, batch)) as lines:
            async for line in lines:
                if isinstance(line, Line) and line.number not in done:
                    result = LineResult(id=new_id("batch_req"), custom_id=line.custom_id, error=error)
                    await self._batches.keep(scope, batch.id, BatchResult(line.number, True, encode(result)))
                    done[line.number] = True

    # ------------------------------------------------------------------------------------------- details

    async def _lines(self, scope: Scope, batch: Batch) -> AsyncGenerator[Line | BadLine, None]:
        try:
            _, content = await self._files.open(scope, batch.input_file_id)
            async with aclosing(numbered(content, self._rules.max_line_bytes)) as lines:
                async for number, data in lines:
                    try:
                        yield read_line(number, data, batch.endpoint)
                    except BadLine as bad:
                        yield bad
        except BadLine as bad:
            yield bad
        except NotFound:
            message = f"Cannot find file '{batch.input_file_id[:128]}'."
            error = BatchError(code="invalid_request", message=message, param="input_file_id")
            raise BadInput([error]) from None

    async def _move(self, scope: Scope, found: Kept, status: BatchStatus, expected: Iterable[str]) -> bool:
        found.batch.status = status
        return await self._batches.change(scope, row_of(found), frozenset(expected))

    def _count(self, batch: Batch, done: dict[int, bool]) -> bool:
        """Whether the counts have changed."""
        failed = sum(done.values())
        before = batch.request_counts
        batch.request_counts = RequestCounts(total=before.total, completed=len(done) - failed, failed=failed)
        return batch.request_counts != before

    async def _file(self, scope: Scope, found: Kept, known: str | UnsetType, kind: str) -> str | UnsetType:
        """The file of the answers of a kind; none if there are none. `known` is what an earlier try was to write."""
        batch, failed = found.batch, kind == "error"
        if not await self._batches.results(scope, batch.id, failed=failed, after=0, limit=1):
            return UNSET
        if isinstance(known, str) and await self._files.find(scope, [known]):
            return known
        file_id = new_file_id()
        setattr(batch, f"{kind}_file_id", file_id)
        await self._move(scope, found, batch.status, {batch.status})
        expiry = found.request.output_expires_after
        content = self._written(scope, batch.id, failed)
        name, seconds = f"{batch.id}_{kind}.jsonl", expiry.seconds if expiry else None
        await self._files.write(scope, file_id, name, content, "batch_output", seconds)
        return file_id

    async def _written(self, scope: Scope, batch_id: str, failed: bool) -> AsyncGenerator[bytes, None]:
        async for some in self._results(scope, batch_id, failed):
            yield b"".join(result.data + b"\n" for result in some)

    async def _usage(self, scope: Scope, batch_id: str) -> BatchUsage | UnsetType:
        usage = UsageSum()
        async for some in self._results(scope, batch_id, failed=False):
            for result in some:
                usage.add(result.data)
        return usage.total if usage.any else UNSET

    async def _results(self, scope: Scope, batch_id: str, failed: bool) -> AsyncGenerator[list[BatchResult], None]:
        after = 0
        while some := await self._batches.results(scope, batch_id, failed=failed, after=after, limit=_PAGE):
            after = some[-1].line
            yield some


class BadInput(Exception):
    """The input file cannot be run as a batch."""

    def __init__(self, errors: list[BatchError]) -> None:
        super().__init__(errors)
        self.errors = errors
