"""A hedge delay that follows the service, over real gRPC."""

from __future__ import annotations

import time

import pytest
from google.cloud.pubsub_v1.types import PublisherOptions

from hedged_pubsub import HedgeDelay, HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall

from .conftest import TOPIC, Make, both_kinds, earn

# Until something was measured, no hedge would come to the rescue before the stall ends.
SETTINGS = HedgingSettings(hedge_delay=HedgeDelay.percentile(0.95, initial=10.0), refill_ratio=0.2)
STALL = 5.0

SLOW = 0.4
"""Seconds that a healthy request takes after the service has become slow."""


def gap(publisher: HedgedPublisher, server: PubSubServer, latency: float = 0.0) -> float:
    """Publish, let the original stall, and return how long after it its first hedge arrived.

    A hedge of an earlier batch may arrive late, though nobody needs it any more.
    """
    earn(publisher)
    server.clear()
    slow = Fixed(latency) if latency else None
    server.set_script(FaultScript(latency=slow, faults=[Stall(STALL, attempts=(0,))]))
    start = time.monotonic()
    publisher.publish(TOPIC, b"data").result(timeout=10)
    assert time.monotonic() - start < STALL
    attempts = server.attempts(TOPIC)
    (original,) = [attempt for attempt in attempts if attempt.attempt_number == 0]
    later = [attempt for attempt in attempts if attempt.arrival > original.arrival]
    return min(hedge.arrival for hedge in later if hedge.attempt_number == 1) - original.arrival


@both_kinds
def test_the_delay_follows(make: Make, server: PubSubServer) -> None:
    """Hedges come 0.1 s after originals of a fast service, and later once it is slow.

    On a busy machine attempts may come late.
    """
    publisher = make(hedging_settings=SETTINGS, tokens=8)
    assert 0.05 < gap(publisher, server) < 2

    server.set_script(FaultScript(latency=Fixed(SLOW)))
    for future in [publisher.publish(TOPIC, b"data") for _ in range(40)]:
        future.result(timeout=10)
    assert SLOW * 0.7 < gap(publisher, server, SLOW) < 2


def test_the_initial_delay_must_be_below_the_timeouts(server: PubSubServer) -> None:
    """R12 is about the delay that is known when the publisher is made."""
    with pytest.raises(ValueError, match=r"hedge_delay \(10 s\) must be below .*\(9 s\)"):
        HedgedPublisher(publisher_options=PublisherOptions(timeout=9.0), hedging_settings=SETTINGS)
