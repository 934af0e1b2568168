"""The built-in language model: a llama.cpp server on a loopback port, started at the first use.

It runs in a child process. Inside ours, the native code holds the interpreter lock while it loads (0.3 s) and
while it stops (30 s if an answer is running), and a crash in it would end every other request.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import IO

import msgspec

from treadle.errors import UpstreamFault
from treadle.models.weights import SMOLLM2, WeightStore, require_module

MODEL = "smollm2-135m-instruct"
"""The id of the built-in model."""

_PROGRAM = Path(__file__).with_name("local_process.py")
_START_SECONDS = 60.0
_STOP_SECONDS = 5.0


class Endpoint(msgspec.Struct, frozen=True):
    """Where a running model server answers in the chat-completions dialect.

    `url` ends in /v1. The key is new at every start: it keeps other local programs and web pages out.
    """

    url: str
    api_key: str
    model: str = MODEL


class _Order(msgspec.Struct):
    """What the child is told, as one line of JSON on its standard input."""

    path: str
    alias: str
    api_key: str
    context: int
    parallel: int
    threads: int
    max_output: int


class _Ready(msgspec.Struct):
    """The child's one line of answer."""

    url: str


class LocalServer:
    """Runs the built-in model, or the GGUF file `path`.

    `context` is in tokens and shared by `parallel` requests at a time (more wait their turn); `max_output` is in
    tokens and bounds answers for which the client set no limit. 8,192 tokens of context take about 190 MB.
    """

    def __init__(
        self,
        store: WeightStore,
        *,
        path: Path | None = None,
        context: int = 8_192,
        parallel: int = 2,
        threads: int = 2,
        max_output: int = 2_048,
    ) -> None:
        self._store = store
        self._path = path
        self._context = context
        self._parallel = parallel
        self._threads = threads
        self._max_output = max_output
        self._starting = asyncio.Lock()
        self._process: Process | None = None
        self._endpoint: Endpoint | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the running server."""
        return self._process.pid if self._is_running() and self._process is not None else None

    async def start(self) -> Endpoint:
        """The endpoint, after starting the server unless it runs; a server that died is started again.

        Raises ModelNotInstalled if the weights or the extra `local` are missing, UpstreamFault if the server does
        not come up.
        """
        async with self._starting:
            if self._endpoint is None or not self._is_running():
                self._process, self._endpoint = await self._launch()
            return self._endpoint

    async def stop(self) -> None:
        """Ends the server at once, along with answers that are running. It may be started again."""
        async with self._starting:
            process, self._process, self._endpoint = self._process, None, None
            if process is not None:
                await _end(process)

    def weights(self) -> Path:
        """The file it runs. Reads files; ModelNotInstalled if something of it is missing."""
        require_module("xllamacpp", "local")
        return self._store.find(SMOLLM2, self._path)

    def _is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _launch(self) -> tuple[Process, Endpoint]:
        path = await asyncio.to_thread(self.weights)
        order = _Order(
            path=str(path),
            alias=MODEL,
            api_key=secrets.token_urlsafe(24),
            context=self._context,
            parallel=self._parallel,
            threads=self._threads,
            max_output=self._max_output,
        )
        # A session of its own: Ctrl-C in the terminal must reach us alone, so that running answers can end well.
        # -P: whatever lies in the current directory must not shadow the standard library.
        with tempfile.TemporaryFile() as noise:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", str(_PROGRAM), stdin=PIPE, stdout=PIPE, stderr=noise, start_new_session=True
            )
            try:
                ready = await asyncio.wait_for(_converse(process, order), _START_SECONDS)
            except (OSError, TimeoutError, msgspec.DecodeError) as fault:
                await _end(process)
                raise UpstreamFault(f"The built-in model did not start: {_last_words(noise)}") from fault
            except BaseException:
                await _end(process)
                raise
        return process, Endpoint(url=f"{ready.url}/v1", api_key=order.api_key)


async def _converse(process: Process, order: _Order) -> _Ready:
    if process.stdin is None or process.stdout is None:
        raise OSError("the process has no pipes")
    process.stdin.write(msgspec.json.encode(order) + b"\n")
    await process.stdin.drain()
    return msgspec.json.decode(await process.stdout.readline(), type=_Ready)


async def _end(process: Process) -> None:
    """Kills and reaps. Nothing in the child needs saving, and its orderly end can take half a minute."""
    if process.returncode is None:
        process.kill()
    await asyncio.wait_for(process.wait(), _STOP_SECONDS)


def _last_words(noise: IO[bytes]) -> str:
    """The last lines the child wrote to its error output: why it failed."""
    noise.seek(0)
    lines = noise.read().decode(errors="replace").strip().splitlines()
    return " / ".join(lines[-6:]) or "it gave no reason"
