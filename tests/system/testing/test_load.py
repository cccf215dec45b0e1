"""Bursts and many held calls: no answer may be lost or cancelled by the server itself."""

from __future__ import annotations

import threading
from collections import Counter

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall
from tests.system.conftest import wait_until

from .conftest import bodies, outcomes, raw_client

BURST = 3_000
HELD = 1_000


def test_a_burst_is_answered_in_full() -> None:
    """3,000 concurrent calls are all answered, at once or held for a while; none is cancelled."""
    script = FaultScript(faults=[Stall(0.2, probability=0.5)])
    with PubSubServer(script, process=True, auto_create_topics=True) as server:
        with raw_client(server) as client:
            calls = [client.start(b"a", timeout=60) for _ in range(BURST)]
            assert Counter(call.code().name for call in calls) == {"OK": BURST}
        assert Counter(outcomes(server)) == {"answered": BURST}
        assert len(server.messages()) == BURST


def test_a_thousand_calls_are_held_without_a_thread_each() -> None:
    """1,000 stalled calls wait in a heap; meanwhile others are answered, and a stop ends all."""
    script = FaultScript(faults=[Stall(600, calls=range(1, HELD + 1))])
    with PubSubServer(script, auto_create_topics=True) as server, raw_client(server) as client:
        calls = [client.start(b"a", timeout=None) for _ in range(HELD)]
        wait_until(lambda: len(server.attempts()) == HELD, timeout=60)
        assert threading.active_count() < 50
        client.publish(b"b")
        server.stop()
        assert Counter(call.code().name for call in calls) == {"UNAVAILABLE": HELD}
    assert Counter(outcomes(server)) == {"cancelled": HELD, "answered": 1}
    assert bodies(server) == [b"b"]
