"""The numbers, as a driver on virtual time counts them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from google.api_core import exceptions

from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import COUNTS, Counters, HedgingStats

from .fakes import Threads
from .story import Permanent, Transient

TimedOut: Any = type("TimedOut", (Transient, exceptions.DeadlineExceeded), {})
ERRORS = {
    "fails": Permanent(),
    "backs off": Transient(),
    "timed out": TimedOut("no answer"),
    "was reset": exceptions.ServiceUnavailable("reset"),
    "was refused": exceptions.ResourceExhausted("quota"),
    "was not sent": OSError(),
}


@pytest.fixture
def bench() -> Threads:
    """Make a driver that hedges after a second and has two tokens, from 20 batches."""
    return Threads(HedgingSettings(hedge_delay=1.0), tokens=2)


def test_a_snapshot_does_not_change(bench: Threads) -> None:
    """What happens later is in the next one; nothing can be set; it can be written as JSON."""
    before = bench.stats()
    copy = dataclasses.replace(before)
    bench.send().calls[0].succeed()
    assert before == copy
    assert bench.stats().batches == before.batches + 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.batches = 0  # type: ignore[misc]
    assert json.loads(json.dumps(dataclasses.asdict(before)))["batches"] == 20


def test_topics_and_their_total(bench: Threads) -> None:
    """The total has each topic's own snapshot, and every count of it is their sum."""
    for _ in range(2):
        _, hedge = bench.hedged().calls
        hedge.succeed()
    other = bench.send(topic="other")
    bench.advance(3.5)
    other.calls[0].succeed()

    total = bench.stats()
    assert set(total.by_topic) == {"topic", "other"}
    for name, stats in total.by_topic.items():
        assert stats == bench.stats(name)
        assert not stats.by_topic
    for count in (*COUNTS, "tokens"):
        parts = [getattr(stats, count) for stats in total.by_topic.values()]
        assert getattr(total, count) == pytest.approx(sum(parts))
    assert (total.hedges_won, total.possible_duplicates, total.result_latency.count) == (2, 2, 23)
    assert total.by_topic["other"].hedges_suppressed == 3, "what one earned, another cannot spend"
    assert bench.stats("projects/p/topics/new") == HedgingStats()


def test_every_count_is_a_number_of_the_snapshot() -> None:
    """What is counted, exported and shown are the same numbers."""
    shown = {field.name for field in dataclasses.fields(HedgingStats)}
    assert set(COUNTS) == shown - {"tokens", "original_latency", "result_latency", "by_topic"}
    assert set(Counters.__slots__) == set(COUNTS)


@pytest.mark.parametrize(
    ("events", "original", "result", "duplicates"),
    [
        # The time of a batch that fails is no latency of a result.
        ("1.25 0 fails", None, None, 0),
        ("0.25 0 succeeds", 0.25, 0.25, 0),
        # The original counts from the last time it was sent, the result from the commit.
        ("0.5 0 backs off; 0.3 1 succeeds", 0.2, 0.8, 0),
        # A loser was cancelled, which does not say what the service did. An original that lost
        # counts with what is known of it: that it took no less than the result.
        ("1.5 1 succeeds", 1.5, 1.5, 1),
        ("1.5 0 succeeds", 1.5, 1.5, 1),
        # Nothing is known of one that backs off when a hedge is answered.
        ("1.5 0 backs off; 0 1 succeeds", None, 1.5, 0),
        # A hedge may have been stored, unless it was refused or never sent.
        ("1.25 1 timed out; 0.25 0 succeeds", 1.5, 1.5, 1),
        ("1.25 1 was reset; 0.25 0 succeeds", 1.5, 1.5, 1),
        ("1.25 1 was refused; 0.25 0 succeeds", 1.5, 1.5, 0),
        ("1.25 1 was not sent; 0.25 0 succeeds", 1.5, 1.5, 0),
        # Retries make duplicates, too: without them the number would not be an upper bound.
        ("0.5 0 timed out; 0.3 1 succeeds", 0.2, 0.8, 1),
        ("0.25 0 timed out; 0.3 1 timed out; 0.3 2 succeeds", 0.2, 0.85, 2),
    ],
)
def test_latencies_and_possible_duplicates(
    events: str, original: float | None, result: float | None, duplicates: int
) -> None:
    """They are known when the batch is stored; what became of its other attempts is no error."""
    bench = Threads(HedgingSettings(hedge_delay=1.0), tokens=1)
    batch = bench.send(backoffs=(0.1, 0.1))
    for event in events.split("; "):
        seconds, number, end = event.split(maxsplit=2)
        bench.advance(float(seconds))
        assert bench.stats().possible_duplicates == 0, "nothing is stored yet"
        call = batch.calls[int(number)]
        call.succeed() if end == "succeeds" else call.fail(ERRORS[end])
    stats = bench.stats()
    assert (stats.batches, stats.batches_failed) == (10 + 1, result is None)
    assert stats.possible_duplicates == duplicates
    for latency, expected in ((stats.original_latency, original), (stats.result_latency, result)):
        assert latency.count == 10 + (expected is not None)
        if expected is not None:
            assert latency.p999 == pytest.approx(expected, rel=0.01)
