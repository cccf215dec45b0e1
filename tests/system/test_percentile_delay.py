"""A hedge delay that follows the service, over real gRPC: threads and asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from google.cloud.pubsub_v1.types import PublisherOptions

from hedged_pubsub import HedgeDelay, HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import Attempt, FaultScript, Fixed, PubSubServer, Stall

from .aio.publishers import publishing, run
from .conftest import MakePublisher

# Until something was measured, no hedge would come to the rescue before the stall ends.
SETTINGS = HedgingSettings(hedge_delay=HedgeDelay.percentile(0.95, initial=10.0))
STALL = 5.0
WARM_UP = 40

SLOW = 0.4
"""Seconds that a healthy request takes after the service has become slow."""


def stall_the_next(server: PubSubServer, *, latency: float = 0.0) -> None:
    """Let the next original stall; hedges take their time."""
    server.set_script(
        FaultScript(
            latency=Fixed(latency) if latency else None, faults=[Stall(STALL, attempts=(0,))]
        )
    )


def gap(attempts: Sequence[Attempt]) -> float:
    """Return how long after the only original its first hedge arrived.

    A hedge of an earlier batch may arrive late, though nobody needs it any more.
    """
    (original,) = [attempt for attempt in attempts if attempt.attempt_number == 0]
    later = [attempt for attempt in attempts if attempt.arrival > original.arrival]
    return min(hedge.arrival for hedge in later if hedge.attempt_number == 1) - original.arrival


def check(fast_gap: float, slow_gap: float, seconds: float) -> None:
    """Compare the hedges' delays with what was measured before.

    On a busy machine either attempt may arrive late.
    """
    assert 0.05 < fast_gap < 2
    assert SLOW * 0.7 < slow_gap < 2
    assert seconds < STALL


def test_threads(make_publisher: MakePublisher, server: PubSubServer, topic: str) -> None:
    """Hedges come 0.1 s after originals of a fast service, and later once it is slow."""
    publisher = make_publisher(hedging_settings=SETTINGS, tokens=WARM_UP // 10)
    stall_the_next(server)
    start = time.monotonic()
    publisher.publish(topic, b"rescued").result(timeout=10)
    seconds = time.monotonic() - start
    fast_gap = gap(server.attempts(topic))

    server.set_script(FaultScript(latency=Fixed(SLOW)))
    for future in [publisher.publish(topic, b"slow") for _ in range(WARM_UP)]:
        future.result(timeout=10)
    server.clear()
    stall_the_next(server, latency=SLOW)
    publisher.publish(topic, b"rescued too").result(timeout=10)
    check(fast_gap, gap(server.attempts(topic)), seconds)


def test_asyncio(server: PubSubServer, topic: str) -> None:
    """The same on an event loop."""

    async def main() -> None:
        async with publishing(server, hedging_settings=SETTINGS, tokens=WARM_UP // 10) as publisher:
            stall_the_next(server)
            start = time.monotonic()
            await publisher.publish(topic, b"rescued")
            seconds = time.monotonic() - start
            fast_gap = gap(server.attempts(topic))

            server.set_script(FaultScript(latency=Fixed(SLOW)))
            await asyncio.gather(*(publisher.publish(topic, b"slow") for _ in range(WARM_UP)))
            server.clear()
            stall_the_next(server, latency=SLOW)
            await publisher.publish(topic, b"rescued too")
            check(fast_gap, gap(server.attempts(topic)), seconds)

    run(main)


@pytest.mark.parametrize("initial", [0.3, 1.0])
def test_before_enough_samples_the_initial_delay_holds(
    make_publisher: MakePublisher, server: PubSubServer, topic: str, initial: float
) -> None:
    """Ten requests earn a token, but tell nothing about a percentile yet."""
    settings = HedgingSettings(hedge_delay=HedgeDelay.percentile(0.95, initial=initial))
    publisher = make_publisher(hedging_settings=settings, tokens=1)
    stall_the_next(server)
    publisher.publish(topic, b"rescued").result(timeout=10)
    assert gap(server.attempts(topic)) > 0.7 * initial


def test_the_initial_delay_must_be_below_the_timeouts(server: PubSubServer) -> None:
    """R12 looks at the delay that is known when the publisher is made."""
    with pytest.raises(ValueError, match=r"hedge_delay \(10 s\) must be below .*\(9 s\)"):
        HedgedPublisher(publisher_options=PublisherOptions(timeout=9.0), hedging_settings=SETTINGS)
