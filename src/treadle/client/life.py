"""Where an app runs when no server runs it: its lifespan, and a thread with an event loop for callers without one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar

from starlette.types import ASGIApp, Message

T = TypeVar("T")


class StartFailed(RuntimeError):
    """The app could not start; the message is the app's own."""


@asynccontextmanager
async def running(app: ASGIApp) -> AsyncIterator[None]:
    """Starts the app, and stops it in the end. StartFailed if it cannot start; what fails while it stops is raised."""
    inbox: asyncio.Queue[Message] = asyncio.Queue()
    outbox: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    # The whole lifespan in one task: what an app opens in a task, it may have to close in the same.
    life = asyncio.get_running_loop().create_task(_live(app, scope, inbox, outbox))
    inbox.put_nowait({"type": "lifespan.startup"})
    try:
        await _reported(outbox, life, "startup")
        yield
    finally:
        if not life.done():
            inbox.put_nowait({"type": "lifespan.shutdown"})
            await _reported(outbox, life, "shutdown")
        await life


async def _live(app: ASGIApp, scope: Message, inbox: asyncio.Queue[Message], outbox: asyncio.Queue[Message]) -> None:
    await app(scope, inbox.get, outbox.put)


async def _reported(outbox: asyncio.Queue[Message], life: asyncio.Task[None], step: str) -> None:
    """Waits for the app's word on a step. StartFailed if it says that it failed, or ends without a word."""
    word = asyncio.ensure_future(outbox.get())
    try:
        await asyncio.wait((word, life), return_when=asyncio.FIRST_COMPLETED)
        if word.done():
            message = word.result()
            if message["type"] != f"lifespan.{step}.complete":
                raise StartFailed(message.get("message") or f"The app's {step} failed.")
        elif step == "startup":
            await life
            raise StartFailed("The app ended instead of starting.")
    finally:
        word.cancel()


class Background:
    """A thread with an event loop, for callers that have none or may not be waited for."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        # A daemon: a client that was never closed must not keep its program from ending.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def is_current(self) -> bool:
        """Whether the caller is in the thread."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[None, None, T]) -> T:
        """Waits for work done in the thread. An interrupted wait, by Ctrl-C for example, cancels the work."""
        with self._lock:
            if self._closed:
                work.close()
                raise RuntimeError("The client is closed.")
            future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("The client was closed during the call.") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, action: Callable[[], object]) -> None:
        """Has something done in the thread, without waiting; nothing happens once the thread has ended."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(action)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(_end_all())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())


async def _end_all() -> None:
    """Cancels what is left, so that every caller who still waits is told."""
    await asyncio.sleep(0)  # what was handed in before the end becomes a task first
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
