"""``AsyncHedgedPublisher`` behind the interface of the synchronous one, for tests of both."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings, HedgingStats
from hedged_pubsub._recording import LatencyRecording

T = TypeVar("T")


class LoopThread:
    """A context manager that runs an event loop, in debug mode, on a thread.

    What asyncio reports meanwhile, errors that nobody asked for above all, fails the test.
    """

    def __init__(
        self,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
        task_factory: Any = None,
    ) -> None:
        self._loop = new_loop()
        self._loop.set_debug(True)
        self._loop.set_task_factory(task_factory)
        self._reported: list[dict[str, Any]] = []
        self._loop.set_exception_handler(self._report)
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> LoopThread:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        """Stop the loop, and check what is left."""
        left = self.run(_other_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        asyncio.set_event_loop(None)
        if exc_type is None:
            assert not left
            assert not self._reported

    def _report(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # That is gRPC's own: the loops of one process wake each other for nothing.
        if not isinstance(context.get("exception"), BlockingIOError):
            self._reported.append(context)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result."""
        return self.start(coroutine).result(timeout=60)


async def _other_tasks() -> set[Any]:
    await asyncio.sleep(0.01)
    return asyncio.all_tasks() - {asyncio.current_task()}


class BlockingPublisher:
    """Publishes from another thread than that of the loop, where the publisher lives."""

    def __init__(self, loop: LoopThread, *args: Any, **arguments: Any) -> None:
        async def make() -> AsyncHedgedPublisher:
            return AsyncHedgedPublisher(*args, **arguments)

        self._loop = loop
        self._publisher = loop.run(make())

    def __enter__(self) -> BlockingPublisher:
        """Return the publisher."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

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
    def transport(self) -> SimpleNamespace:
        """What closes the channel, with ``close()``."""
        transport = self._publisher.transport
        return SimpleNamespace(close=lambda: self._loop.run(transport.close()))

    @property
    def hedging_settings(self) -> HedgingSettings | None:
        """The settings in force."""
        return self._publisher.hedging_settings

    def record_latencies(self, path: Path) -> LatencyRecording:
        """Record, from the loop's thread."""

        async def record() -> LatencyRecording:
            return self._publisher.record_latencies(path)

        return self._loop.run(record())

    def hedging_stats(self, topic: str | None = None) -> HedgingStats:
        """Return a snapshot, taken on the loop's thread."""

        async def snapshot() -> HedgingStats:
            return self._publisher.hedging_stats(topic)

        return self._loop.run(snapshot())
