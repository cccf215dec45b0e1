"""A hedge delay that follows the service, over real gRPC: threads and asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from google.cloud.pubsub_v1.types import PublisherOptions

from hedged_pubsub import HedgeDelay, HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import Attempt, FaultScript, Fixed, PubSubServer, Stall

from .aio.publishers import publishing, run
from .conftest import TOPIC, Make

# Until something was measured, no hedge would come to the rescue before the stall ends.
SETTINGS = HedgingSettings(hedge_delay=HedgeDelay.percentile(0.95, initial=10.0))
STALL = 5.0
WARM_UP = 40

SLOW = 0.4
"""Seconds that a healthy request takes after the service has become slow."""


def stall_the_next(server: PubSubServer, *, latency: float = 0.0) -> None:
    """Let the next original stall; hedges take their time."""
    slow = Fixed(latency) if latency else None
    server.set_script(FaultScript(latency=slow, faults=[Stall(STALL, attempts=(0,))]))


def gap(attempts: Sequence[Attempt]) -> float:
    """Return how long after the only original its first hedge arrived.

    A hedge of an earlier batch may arrive late, though nobody needs it any more.
    """
    (original,) = [attempt for attempt in attempts if attempt.attempt_number == 0]
    later = [attempt for attempt in attempts if attempt.arrival > original.arrival]
    return min(hedge.arrival for hedge in later if hedge.attempt_number == 1) - original.arrival


async def check(server: PubSubServer, publish: Callable[[int], Awaitable[Any]]) -> None:
    """Hedges come 0.1 s after originals of a fast service, and later once it is slow.

    On a busy machine attempts may come late. ``publish`` publishes so many messages at once.
    """
    stall_the_next(server)
    start = time.monotonic()
    await publish(1)
    assert time.monotonic() - start < STALL
    assert 0.05 < gap(server.attempts(TOPIC)) < 2

    server.set_script(FaultScript(latency=Fixed(SLOW)))
    await publish(WARM_UP)
    server.clear()
    stall_the_next(server, latency=SLOW)
    await publish(1)
    assert SLOW * 0.7 < gap(server.attempts(TOPIC)) < 2


def test_threads(make: Make, server: PubSubServer) -> None:
    """Publishers with threads follow the service."""
    publisher = make(hedging_settings=SETTINGS, tokens=WARM_UP // 10)

    async def publish(count: int) -> None:
        for future in [publisher.publish(TOPIC, b"data") for _ in range(count)]:
            future.result(timeout=10)

    asyncio.run(check(server, publish))


def test_asyncio(server: PubSubServer) -> None:
    """The same on an event loop."""

    async def main() -> None:
        async with publishing(server, hedging_settings=SETTINGS, tokens=WARM_UP // 10) as publisher:

            async def publish(count: int) -> None:
                await asyncio.gather(*(publisher.publish(TOPIC, b"data") for _ in range(count)))

            await check(server, publish)

    run(main)


def test_the_initial_delay_must_be_below_the_timeouts(server: PubSubServer) -> None:
    """R12 is about the delay that is known when the publisher is made."""
    with pytest.raises(ValueError, match=r"hedge_delay \(10 s\) must be below .*\(9 s\)"):
        HedgedPublisher(publisher_options=PublisherOptions(timeout=9.0), hedging_settings=SETTINGS)
