"""The numbers, as a driver on virtual time counts them."""

from __future__ import annotations

import dataclasses
import json

import pytest
from google.api_core import exceptions

from hedged_pubsub._sync.driver import Driver
from hedged_pubsub.histogram import NO_SAMPLES
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import COUNTS, Counters, HedgingStats

from .fakes import FakeBatch, FakeCall, VirtualTime, virtual_driver
from .story import Permanent, Transient

LOST_ANSWER = exceptions.DeadlineExceeded("no answer in time")
REFUSED = exceptions.ResourceExhausted("quota")


@pytest.fixture
def driver_and_time() -> tuple[Driver, VirtualTime]:
    """Make a driver that hedges after a second and has two tokens."""
    driver, time = virtual_driver(HedgingSettings(hedge_delay=1.0))
    for _ in range(20):
        submit(driver).calls[0].succeed()
    return driver, time


def submit(driver: Driver, topic: str = "topic") -> FakeBatch:
    """Send a batch that a test answers."""
    batch = FakeBatch()
    batch.topic = topic
    driver.submit(batch)
    return batch


def hedged(driver: Driver, time: VirtualTime) -> tuple[FakeCall, FakeCall]:
    """Send a batch and wait for its hedge."""
    batch = submit(driver)
    time.advance(time.now + 1.0)
    original, hedge = batch.calls
    return original, hedge


def test_a_snapshot_does_not_change(driver_and_time: tuple[Driver, VirtualTime]) -> None:
    """What happens later is in the next one; nothing can be set."""
    driver, _ = driver_and_time
    before = driver.stats()
    copy = dataclasses.replace(before)
    submit(driver).calls[0].succeed()
    assert before == copy
    assert driver.stats().batches == before.batches + 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.batches = 0  # type: ignore[misc]


def test_a_snapshot_can_be_written_as_json(driver_and_time: tuple[Driver, VirtualTime]) -> None:
    """It is plain data through and through."""
    driver, _ = driver_and_time
    assert json.loads(json.dumps(dataclasses.asdict(driver.stats())))["batches"] == 20


def test_topics_and_their_total(driver_and_time: tuple[Driver, VirtualTime]) -> None:
    """The total has each topic's own snapshot, and every count of it is their sum."""
    driver, time = driver_and_time
    _, hedge = hedged(driver, time)
    hedge.succeed()
    other = submit(driver, "other")
    time.advance(time.now + 3.5)
    other.calls[0].succeed()

    total = driver.stats()
    assert set(total.by_topic) == {"topic", "other"}
    for name, stats in total.by_topic.items():
        assert stats == driver.stats(name)
        assert not stats.by_topic
    for count in (*COUNTS, "tokens"):
        parts = [getattr(stats, count) for stats in total.by_topic.values()]
        assert getattr(total, count) == pytest.approx(sum(parts))
    assert total.result_latency.count == 22
    assert total.by_topic["other"].hedges_suppressed == 3


def test_every_count_is_a_number_of_the_snapshot() -> None:
    """What is counted, exported and shown are the same numbers."""
    shown = {field.name for field in dataclasses.fields(HedgingStats)}
    assert set(COUNTS) == shown - {"tokens", "original_latency", "result_latency", "by_topic"}
    assert set(Counters.__slots__) == {*COUNTS, "original_latency", "result_latency"}


def test_latency_of_an_original_that_is_answered() -> None:
    """It is that of the result, too."""
    driver, time = virtual_driver()
    batch = submit(driver)
    time.advance(0.25)
    batch.calls[0].succeed()
    stats = driver.stats()
    assert stats.original_latency == stats.result_latency
    assert stats.result_latency.count == 1
    assert stats.result_latency.p50 == pytest.approx(0.25, rel=0.01)


def test_latency_of_an_original_that_is_sent_again() -> None:
    """The original counts from the last time it was sent, the result from the commit."""
    driver, time = virtual_driver()
    batch = submit(driver)
    time.advance(0.5)
    batch.calls[0].fail(Transient())
    time.advance(0.6)  # the backoff
    time.advance(0.8)
    batch.calls[1].succeed()
    stats = driver.stats()
    assert stats.original_latency.p50 == pytest.approx(0.2, rel=0.01)
    assert stats.result_latency.p50 == pytest.approx(0.8, rel=0.01)


def test_latency_of_an_original_that_loses(driver_and_time: tuple[Driver, VirtualTime]) -> None:
    """It counts with what is known of it: that it took no less than the result."""
    driver, time = driver_and_time
    before = driver.stats().original_latency.count
    _, hedge = hedged(driver, time)
    time.advance(time.now + 0.5)
    hedge.succeed()
    latency = driver.stats().original_latency
    assert latency.count == before + 1
    assert latency.p999 == pytest.approx(1.5, rel=0.01)


def test_a_batch_that_fails() -> None:
    """It is counted, and its time is no latency of a result."""
    driver, time = virtual_driver()
    batch = submit(driver)
    time.advance(0.5)
    batch.calls[0].fail(Permanent())
    stats = driver.stats()
    assert (stats.batches, stats.batches_failed) == (1, 1)
    assert stats.original_latency == stats.result_latency == NO_SAMPLES


def test_a_loser_is_a_possible_duplicate(driver_and_time: tuple[Driver, VirtualTime]) -> None:
    """Whichever attempt lost: that it was cancelled does not say what the service did."""
    driver, time = driver_and_time
    original, hedge = hedged(driver, time)
    hedge.succeed()
    assert original.cancelled
    assert driver.stats().possible_duplicates == 1
    original, hedge = hedged(driver, time)
    original.succeed()
    assert hedge.cancelled
    stats = driver.stats()
    assert stats.possible_duplicates == stats.attempts_cancelled == 2
    assert stats.batches_failed == 0, "a loser is no error"


@pytest.mark.parametrize(
    ("error", "duplicates"),
    [(LOST_ANSWER, 1), (exceptions.ServiceUnavailable("reset"), 1), (REFUSED, 0), (OSError(), 0)],
    ids=lambda value: getattr(value, "grpc_status_code", value),
)
def test_a_hedge_that_failed(
    driver_and_time: tuple[Driver, VirtualTime], error: Exception, duplicates: int
) -> None:
    """It may have stored the batch, unless the service refused it or it was never sent."""
    driver, time = driver_and_time
    original, hedge = hedged(driver, time)
    hedge.fail(error)
    assert driver.stats().possible_duplicates == 0, "nothing is stored yet"
    original.succeed()
    assert driver.stats().possible_duplicates == duplicates


def test_an_original_that_timed_out_and_was_sent_again() -> None:
    """Retries make duplicates, too: without them the number would not be an upper bound."""
    driver, time = virtual_driver()
    batch = submit(driver)
    batch.judge = lambda error: dataclasses.replace(  # type: ignore[method-assign]
        FakeBatch.judge(batch, Transient()), error=error
    )
    batch.calls[0].fail(LOST_ANSWER)
    time.advance(0.1)
    batch.calls[1].succeed()
    assert driver.stats().possible_duplicates == 1


def test_a_batch_that_failed_has_no_duplicates(
    driver_and_time: tuple[Driver, VirtualTime],
) -> None:
    """There is nothing that it could be a duplicate of."""
    driver, time = driver_and_time
    original, hedge = hedged(driver, time)
    original.fail(Permanent())
    assert hedge.cancelled
    stats = driver.stats()
    assert (stats.batches_failed, stats.possible_duplicates) == (1, 0)


def test_in_a_forked_child_all_begins_at_zero(
    driver_and_time: tuple[Driver, VirtualTime],
) -> None:
    """What the parent counted is the parent's."""
    driver, _ = driver_and_time
    driver.start_anew()
    assert driver.stats() == HedgingStats()
    assert not driver.stats().by_topic
