"""Running coroutines strictly, and publishers that have earned their tokens."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from google.cloud import pubsub_v1

from hedged_pubsub import AsyncHedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer

from ..conftest import FAST, ONE_MESSAGE


def run(
    main: Callable[[], Awaitable[None]],
    *,
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    task_factory: Any = None,
) -> None:
    """Run a coroutine function in debug mode.

    Whatever asyncio reports, a task left behind or an error that nobody asked for, is an error.
    """
    reported: list[dict[str, Any]] = []

    def report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not is_grpcs(context):
            reported.append(context)

    loop = new_loop()
    loop.set_debug(True)
    loop.set_task_factory(task_factory)
    loop.set_exception_handler(report)

    async def run_main() -> set[Any]:
        await main()
        return asyncio.all_tasks() - {asyncio.current_task()}

    try:
        left = loop.run_until_complete(run_main())
        gc.collect()
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    assert not left, "tasks were left behind"
    assert not reported


def is_grpcs(context: dict[str, Any]) -> bool:
    """Tell whether a report is of gRPC's own: loops of one process wake each other for nothing."""
    return isinstance(context.get("exception"), BlockingIOError)


@asynccontextmanager
async def publishing(
    server: PubSubServer,
    *,
    tokens: int = 0,
    script: FaultScript | None = None,
    hedging_settings: HedgingSettings | None = FAST,
    batch_settings: pubsub_v1.types.BatchSettings = ONE_MESSAGE,
    **arguments: Any,
) -> AsyncIterator[AsyncHedgedPublisher]:
    """Make a publisher that sends one message a request and close it after the block.

    Args:
        server: Forgets what earning the tokens sent, and goes on without faults after the block.
        tokens: Earned before, on the topic ``orders``.
        script: Set once the tokens are earned.
        hedging_settings: The publisher's.
        batch_settings: The publisher's.
        arguments: The publisher's.
    """
    async with AsyncHedgedPublisher(
        batch_settings, hedging_settings=hedging_settings, **arguments
    ) as publisher:
        while publisher.hedging_stats().tokens < tokens:  # a slow one may cost a token
            message_id = await publisher.enqueue(server.topic_path("orders"), b"warm-up")
            await publisher.flush(timeout=10)
            await message_id
        server.clear()
        server.set_script(script or FaultScript())
        try:
            yield publisher
        finally:
            server.set_script(FaultScript())


async def until(condition: Callable[[], object], timeout: float = 5.0) -> None:
    """Wait for something that happens elsewhere, and fail if it does not."""
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up, "this did not happen in time"
        await asyncio.sleep(0.005)


def settled(server: PubSubServer) -> Callable[[], bool]:
    """Return a condition: no attempt is pending at the server."""
    return lambda: all(attempt.outcome != "pending" for attempt in server.attempts())
