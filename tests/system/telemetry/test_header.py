"""The telemetry header (R10) on every attempt of a batch, however it comes to be sent."""

from __future__ import annotations

import time

from google.api_core.retry import Retry
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status, StoreThenStall

from ..conftest import MakePublisher

RETRY = Retry(initial=0.2, maximum=0.2)


def test_retries_and_hedges_share_the_start_time(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """It is that of ``publish()``, also on a retry and on the hedge of a retry."""
    publisher = make_publisher(tokens=1)
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=1), Stall(30, attempts=[0])]))
    before = time.time()
    future = publisher.publish(topic, b"data", retry=RETRY)
    after = time.time()
    future.result(timeout=5)
    attempts = server.attempts()
    assert [attempt.attempt_number for attempt in attempts] == [0, 0, 1]
    (start,) = {attempt.publish_start_time for attempt in attempts}
    assert start is not None
    assert before - 0.001 <= start <= after


def test_batches_have_start_times_of_their_own(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Messages whose call differs in retry or timeout travel, and count their time, apart."""
    publisher = make_publisher(
        tokens=0, batch_settings=BatchSettings(max_messages=10, max_latency=60)
    )
    bounds: list[tuple[float, float]] = []
    for timeout in (20, 30):
        before = time.time()
        publisher.publish(topic, b"data", timeout=timeout)
        bounds.append((before - 0.001, time.time()))
        time.sleep(0.01)
    publisher.flush(timeout=5)
    attempts = sorted(server.attempts(), key=lambda attempt: attempt.timeout or 0)
    for attempt, (low, high) in zip(attempts, bounds, strict=True):
        assert attempt.message_count == 1
        assert attempt.publish_start_time is not None
        assert low <= attempt.publish_start_time <= high


def test_the_header_is_not_in_the_message(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Neither original nor hedge adds to the attributes."""
    publisher = make_publisher(tokens=1)
    server.set_script(FaultScript(faults=[StoreThenStall(30, attempts=[0])]))
    publisher.publish(topic, b"data", colour="blue").result(timeout=5)
    assert len(server.messages()) == 2
    assert {message.attributes for message in server.messages()} == {(("colour", "blue"),)}
