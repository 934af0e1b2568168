"""The parent's end of a reading process: start it, send an order, take the answers in time, kill it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import msgspec

from treadle.errors import Internal, InvalidRequest, ServerError, Stopping, UnreadableFile, UnsupportedFile
from treadle.retrieval.extract.frames import LENGTH, MAX_FRAME, Answer, Batch, Done, Fault, Order, Piece, Ready, packed

log = logging.getLogger(__name__)

_MODULE = "treadle.retrieval.extract.worker"
_START_SECONDS = 60.0
_DYING_SECONDS = 2.0
_PIPE_BUFFER = 1024 * 1024
"""Bytes of answers that are taken from the process before somebody asks for them; twice that at most."""


class ReadingProcess:
    """A process that reads documents one after the other. Not for use by two tasks at once."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
        self._reading = False
        self._is_awaited = False
        self._was_killed = False
        self.served = 0
        self.memory_mb = 0
        """What it held after its last document."""

    @classmethod
    async def start(cls, folder: Path) -> Self:
        """A process that is ready; it removes `folder` when we die. Internal if it does not come up: see the log."""
        with tempfile.TemporaryFile() as noise:
            try:
                started = cls(await _spawned(folder, noise))
            except OSError as fault:
                raise Internal.logged(log, _MODULE) from fault
            try:
                async with asyncio.timeout(_START_SECONDS):
                    first = await started._answer()
                if not isinstance(first, Ready):
                    raise msgspec.DecodeError(f"it began with {type(first).__name__}")
            except (asyncio.IncompleteReadError, TimeoutError, msgspec.DecodeError, OSError) as fault:
                await started.end()
                log.error("a process for reading documents did not start: %r: %s", fault, _last_words(noise))  # noqa: TRY400
                raise Internal("Documents cannot be read: no process for it could be started.") from fault
            except BaseException:
                await started.end()
                raise
        return started

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """It lives and waits for an order."""
        return not self._reading and not self._was_killed and self._process.returncode is None

    async def answers(self, order: Order) -> AsyncGenerator[Batch | Piece]:
        """What the process makes of the document. Leaving early leaves the process useless.

        UnsupportedFile or UnreadableFile, also if it dies or takes too long; Stopping if we killed it.
        """
        self._reading = True
        left = order.bounds.seconds
        clock = asyncio.get_running_loop().time
        try:
            self._write(order)
            while True:
                begun = clock()
                async with asyncio.timeout(max(0.0, left)):
                    answer = await self._answer()
                left -= clock() - begun
                if isinstance(answer, Ready):
                    raise msgspec.DecodeError("it is ready twice")
                if isinstance(answer, Done | Fault):
                    break
                yield answer
        except TimeoutError as fault:
            raise _too_slow(order) from fault
        except (asyncio.IncompleteReadError, OSError) as fault:
            raise await self._death(order) from fault
        except msgspec.DecodeError as fault:
            log.warning("the process reading %.200r gave no sense: %s", order.filename, fault)
            raise UnreadableFile("The document could not be read: its reader failed on it.") from fault
        self._finish(answer, order)

    def _finish(self, last: Done | Fault, order: Order) -> None:
        self.served += 1
        self.memory_mb = last.memory_mb
        self._reading = False
        if isinstance(last, Fault):
            raise _raised(last, order.filename)

    def _write(self, order: Order) -> None:
        if self._process.stdin is None:
            raise ConnectionResetError("the process has no pipe")
        self._process.stdin.write(packed(order))

    async def _answer(self) -> Answer:
        stream = self._process.stdout
        if stream is None:
            raise ConnectionResetError("the process has no pipe")
        self._is_awaited = True
        try:
            (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
            if length > MAX_FRAME:
                raise msgspec.DecodeError("the answer is too long")
            return self._decoder.decode(await stream.readexactly(length))
        finally:
            self._is_awaited = False

    async def _death(self, order: Order) -> ServerError:
        if self._was_killed:
            return Stopping()
        # It is about to end by itself. To kill it now could take the reason from the event loop: Popen reaps first.
        with suppress(TimeoutError):
            async with asyncio.timeout(_DYING_SECONDS):
                await self._reaped()
        await self.end()
        code = self._process.returncode or 0
        if sys.platform != "win32" and code == -signal.SIGXCPU:
            return _too_slow(order)
        reason = signal.Signals(-code).name if code < 0 else f"code {code}"
        log.warning("the process reading %.200r died: %s", order.filename, reason)
        return UnreadableFile(f"The document could not be read: its reader crashed on it ({reason}).")

    def kill(self) -> None:
        """Kills it at once; the event loop reaps it."""
        self._was_killed = True
        if self._process.returncode is None:
            self._process.kill()

    async def end(self) -> None:
        """Kills and reaps."""
        self.kill()
        await self._reaped()

    async def _reaped(self) -> None:
        # asyncio waits for the pipe as well, and does not see its end before what is in it was taken.
        while (
            self._process.stdout is not None and not self._is_awaited and await self._process.stdout.read(_PIPE_BUFFER)
        ):
            pass
        await self._process.wait()


async def _spawned(folder: Path, noise: IO[bytes]) -> Process:
    # Nothing of our environment but where modules are: it holds keys, and the process works on strangers' files.
    # One arena and one thread of NumPy's: each further one counts 64 MB and more against the limit of addresses.
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "MALLOC_ARENA_MAX": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "LC_ALL": "C.UTF-8",
    }
    # A session of its own: Ctrl-C in the terminal must reach us alone.
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-s", "-B", "-m", _MODULE, str(folder)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=noise,
        env=environment,
        limit=_PIPE_BUFFER,
        start_new_session=True,
    )


def _too_slow(order: Order) -> UnreadableFile:
    return UnreadableFile(f"Reading the document takes more time than allowed ({order.bounds.seconds:g} seconds).")


def _raised(fault: Fault, filename: str) -> InvalidRequest:
    if fault.detail:
        log.warning("%.200r could not be read: %s\n%s", filename, fault.message, fault.detail)
    match fault.kind:
        case "unsupported":
            return UnsupportedFile(fault.message)
        case "unreadable":
            return UnreadableFile(fault.message)
        case "invalid":
            return InvalidRequest(fault.message)


def _last_words(noise: IO[bytes]) -> str:
    """The last lines it wrote to its error output: why it failed."""
    noise.seek(0)
    lines = noise.read().decode(errors="replace").strip().splitlines()
    return " / ".join(lines[-6:]) or "it gave no reason"
