"""Under load: others get their turn, and answers and hedges that meet are one result each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgingSettings
from hedged_pubsub.aio import publisher as publisher_module
from hedged_pubsub.testing import PubSubServer

from ..conftest import TOPIC
from .publishers import publishing

HUNDRED = BatchSettings(max_messages=101, max_latency=60)
PATIENT = HedgingSettings(hedge_delay=10)


async def count_turns(publish: Callable[[], Awaitable[None]]) -> int:
    """Return how often another task got its turn while this published."""
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(take_turns())
    await publish()
    other.cancel()
    return turns


async def test_a_task_that_publishes_does_not_hold_up_the_others(server: PubSubServer) -> None:
    """Three thousand messages of one task leave others a turn for each millisecond, about."""
    async with publishing(server, batch_settings=HUNDRED, hedging_settings=PATIENT) as publisher:
        took = 0.0

        async def publish() -> None:
            nonlocal took
            start = time.thread_time()
            for _ in range(3_000):
                await publisher.enqueue(TOPIC, b"data")
            took = time.thread_time() - start

        turns = await count_turns(publish)
        # Counted in CPU time, of which a machine that is busy with others takes no more. A fifth
        # of it is a bound of five milliseconds in the mean; the constant is what bounds each turn.
        assert turns > took / publisher_module._MAX_TURN / 5
        assert publisher_module._MAX_TURN <= 0.001
        await publisher.flush(timeout=30)
    assert sum(attempt.message_count for attempt in server.attempts()) == 3_000


async def test_a_task_that_publishes_now_and_then_waits_for_nothing(server: PubSubServer) -> None:
    """``enqueue`` lets others run only after a millisecond of publishing, not at every call."""
    async with publishing(server, batch_settings=HUNDRED, hedging_settings=PATIENT) as publisher:
        for _ in range(3):
            step = publisher.enqueue(TOPIC, b"data")
            with pytest.raises(StopIteration) as finished:
                step.send(None)
            assert isinstance(finished.value.value, asyncio.Future)
            await asyncio.sleep(0)
        await publisher.flush()
