"""Very many topics: what each keeps for ever, and what only those have that are in use."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from hedged_pubsub._core import recent_topics
from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.events import ORIGINAL, Start, Succeeded
from hedged_pubsub._core.hedge_delay import HedgeDelay
from hedged_pubsub._core.runs import WOKE, Runs
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import COUNTS, HedgingStats


def publish(runs: Runs[Batch], topic: str, *, seconds: float = 0.05) -> bool:
    """Publish a batch that is answered after some time; return whether it was hedged."""
    batch = Batch(topic, 600.0, has_extras=False)
    runs.commit(batch, 0.0)
    runs.is_wanted(batch, ORIGINAL, 0.0, is_logged=False)
    orders = runs.handle(batch, WOKE, 1.0) if seconds > 1 else ()
    hedges = [order.attempt for order in orders if isinstance(order, Start)]
    for attempt in hedges:
        runs.is_wanted(batch, attempt, 1.0, is_logged=False)
    runs.handle(batch, Succeeded(ORIGINAL), seconds)
    return bool(hedges)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three topics be in use at most."""
    monkeypatch.setattr(recent_topics, "MAX_TOPICS", 3)


@pytest.fixture
def runs() -> Runs[Batch]:
    """Make runs whose topics start with two tokens."""
    return Runs(HedgingSettings(hedge_delay=1.0, initial_tokens=2))


@pytest.mark.usefixtures("few")
def test_a_topic_that_was_idle_keeps_its_numbers(runs: Runs[Batch]) -> None:
    """Its counts and its tokens go on from where they were; it is hedged as ever."""
    assert publish(runs, "idle", seconds=1.5)
    before = runs.stats("idle")
    assert before.result_latency.count == before.original_latency.count == 1
    for number in range(9):
        publish(runs, f"other {number}")
    idle = runs.stats("idle")
    assert (idle.tokens, idle.result_latency) == (before.tokens, HedgingStats().result_latency)
    assert [getattr(idle, name) for name in COUNTS] == [getattr(before, name) for name in COUNTS]
    assert runs.stats().by_topic["idle"] == idle
    assert publish(runs, "idle", seconds=1.5)
    assert not publish(runs, "idle", seconds=1.5), "initial tokens are not granted again"
    after = runs.stats("idle")
    assert (after.batches, after.hedges_sent, after.hedges_suppressed) == (3, 2, 1)
    assert after.tokens == pytest.approx(2 - 2 + 3 * 0.1)
    assert after.result_latency.count == 2, "its own percentiles begin anew"


@pytest.mark.usefixtures("few")
def test_the_totals_are_those_of_all_topics(runs: Runs[Batch]) -> None:
    """Whichever topics have histograms of their own, in any order of use."""
    chance = random.Random(1)
    everything: Runs[Batch] = Runs(HedgingSettings(hedge_delay=1.0, initial_tokens=2))
    for number in range(300):
        topic, seconds = str(chance.randrange(9)), chance.lognormvariate(-2, 1)
        publish(runs, topic, seconds=seconds)
        publish(everything, "all", seconds=seconds)
        own = [one for one in runs.stats().by_topic.values() if one.result_latency.count]
        assert len(own) <= 3, number
    total, expected = runs.stats(), everything.stats()
    assert total.batches == 300
    assert total.result_latency == expected.result_latency
    assert total.original_latency == expected.original_latency
    assert sum(one.batches for one in total.by_topic.values()) == 300


@pytest.mark.usefixtures("few")
def test_a_topic_in_use_stays(runs: Runs[Batch]) -> None:
    """However many others come and go beside it."""
    for number in range(30):
        publish(runs, "busy")
        publish(runs, f"other {number}")
        publish(runs, f"another {number}")
    assert runs.stats("busy").result_latency.count == 30


@pytest.mark.usefixtures("few")
def test_a_batch_under_way_is_counted(runs: Runs[Batch]) -> None:
    """Its topic may be out of use when it is answered."""
    batch = Batch("slow", 600.0, has_extras=False)
    runs.commit(batch, 0.0)
    for number in range(9):
        publish(runs, f"other {number}")
    runs.handle(batch, Succeeded(ORIGINAL), 0.5)
    total = runs.stats()
    assert total.by_topic["slow"].tokens == pytest.approx(2.1)
    assert total.result_latency.count == total.batches == 10


@pytest.mark.usefixtures("few")
def test_a_measured_delay_outlasts_the_idle_time() -> None:
    """Until there are enough new samples, the delay is the last one that was measured."""
    setting = HedgeDelay.percentile(0.95, initial=0.5)
    runs: Runs[Batch] = Runs(HedgingSettings(hedge_delay=setting))
    for _ in range(20):
        publish(runs, "idle", seconds=0.2)
    assert runs.topics["idle"].hedge_delay == 0.2
    for number in range(9):
        publish(runs, f"other {number}")
    publish(runs, "idle", seconds=0.3)
    assert runs.topics["idle"].hedge_delay == 0.2
    for _ in range(19):
        publish(runs, "idle", seconds=0.3)
    assert runs.topics["idle"].hedge_delay == 0.3


@pytest.mark.usefixtures("few")
def test_a_topic_takes_little_memory(runs: Runs[Batch]) -> None:
    """Beyond those in use, less than 700 bytes each; and the numbers of all are there."""
    names = [f"projects/test/topics/tenant-{number}" for number in range(2000)]
    tracemalloc.start()
    try:
        for name in names:
            publish(runs, name)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / len(names) < 700
    assert set(runs.stats().by_topic) == set(names)
