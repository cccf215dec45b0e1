"""Bursts and many held calls: no answer may be lost or cancelled by the server itself."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall

from .raw_client import raw_client, wait_until

BURST = 3_000
HELD = 2_000


@pytest.mark.parametrize("latency", [None, Fixed(0.2)], ids=["at once", "held"])
def test_a_burst_is_answered_in_full(latency: Fixed | None) -> None:
    """3,000 concurrent calls are all answered; none is cancelled."""
    script = FaultScript(latency=latency)
    codes: Counter[str] = Counter()
    done = threading.Semaphore(0)

    def count(call: Any) -> None:
        codes[call.code().name] += 1
        done.release()

    with PubSubServer(script, process=True, auto_create_topics=True) as server:
        with raw_client(server) as client:
            calls = [client.start(b"a", timeout=60) for _ in range(BURST)]
            for call in calls:
                call.add_done_callback(count)
            for _ in calls:
                assert done.acquire(timeout=60)
        assert codes == {"OK": BURST}
        assert Counter(a.outcome for a in server.attempts()) == {"answered": BURST}
        assert len(server.messages()) == BURST


@pytest.mark.parametrize("process", [False, True], ids=["local", "process"])
def test_thousands_of_calls_are_held_without_a_thread_each(process: bool) -> None:
    """2,000 stalled calls wait in a heap; meanwhile others are answered, and a stop is prompt."""
    script = FaultScript(faults=[Stall(600, calls=range(1, HELD + 1))])
    with PubSubServer(script, process=process, auto_create_topics=True) as server:
        with raw_client(server) as client:
            calls = [client.start(b"a", timeout=None) for _ in range(HELD)]
            wait_until(lambda: len(server.attempts()) == HELD, timeout=30)
            assert threading.active_count() < 50
            client.publish(b"b")
            start = time.monotonic()
            server.stop()
            took = time.monotonic() - start
            for call in calls:
                assert call.exception(timeout=30) is not None
    # Half a second on an idle machine.
    assert took < 3
    assert Counter(a.outcome for a in server.attempts()) == {"cancelled": HELD, "answered": 1}
    assert [m.data for m in server.messages()] == [b"b"]
