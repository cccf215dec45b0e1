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

from ..both import LoopThread
from ..conftest import FAST, ONE_MESSAGE, TOPIC
from ..conftest import settled as settled


def run(main: Callable[[], Awaitable[None]], **arguments: Any) -> None:
    """Run a coroutine function on a `LoopThread` of its own; it must leave no task behind."""

    async def run_main() -> set[Any]:
        await main()
        return asyncio.all_tasks() - {asyncio.current_task()}

    with LoopThread(**arguments) as loop:
        left = loop.run(run_main())
        gc.collect()
    assert not left, "tasks were left behind"


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

    ``tokens`` are earned before; the server forgets that, and follows ``script`` within the block.
    """
    async with AsyncHedgedPublisher(
        batch_settings, hedging_settings=hedging_settings, **arguments
    ) as publisher:
        while publisher.hedging_stats().tokens < tokens:  # a slow one may cost a token
            message_id = await publisher.enqueue(TOPIC, b"token")
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
