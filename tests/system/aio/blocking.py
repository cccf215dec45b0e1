"""``AsyncHedgedPublisher`` behind the interface of the synchronous one, for tests of both."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings, HedgingStats

from .publishers import is_grpcs

T = TypeVar("T")


class LoopThread:
    """A context manager that runs an event loop, in debug mode, on a thread.

    What asyncio reports meanwhile, errors that nobody asked for above all, fails the test.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_debug(True)
        self._reported: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _, context: self._reported.append(context))
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> LoopThread:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the loop, and look at what is left."""
        left = self.run(_other_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if exc_type is None:
            assert not left
            assert not [context for context in self._reported if not is_grpcs(context)]

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result."""
        return self.start(coroutine).result(timeout=30)


async def _other_tasks() -> set[Any]:
    await asyncio.sleep(0.01)
    return asyncio.all_tasks() - {asyncio.current_task()}


class BlockingPublisher:
    """Publishes from another thread than the loop's.

    Args:
        loop: Where the publisher lives.
        arguments: The publisher's.
    """

    def __init__(self, loop: LoopThread, **arguments: Any) -> None:
        async def make() -> AsyncHedgedPublisher:
            return AsyncHedgedPublisher(**arguments)

        self._loop = loop
        self._publisher = loop.run(make())

    def publish(self, topic: str, data: bytes, **arguments: Any) -> concurrent.futures.Future[str]:
        """Enqueue a message; refusals are raised from here."""

        async def wait(message_id: asyncio.Future[str]) -> str:
            return await message_id

        enqueued = self._loop.run(self._publisher.enqueue(topic, data, **arguments))
        return self._loop.start(wait(enqueued))

    def flush(self, timeout: float | None = None) -> None:
        """Flush."""
        self._loop.run(self._publisher.flush(timeout))

    def close(self, timeout: float | None = None) -> None:
        """Close."""
        self._loop.run(self._publisher.close(timeout))

    @property
    def hedging_settings(self) -> HedgingSettings | None:
        """The settings in force."""
        return self._publisher.hedging_settings

    def hedging_stats(self, topic: str | None = None) -> HedgingStats:
        """Return a snapshot, taken on the loop's thread."""

        async def snapshot() -> HedgingStats:
            return self._publisher.hedging_stats(topic)

        return self._loop.run(snapshot())
