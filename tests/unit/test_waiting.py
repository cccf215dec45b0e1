"""Proof ends the backoff (R16): which originals are let go, how many, and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.events import (
    ORIGINAL,
    Abandoned,
    Failed,
    Order,
    Resend,
    Start,
    Succeeded,
    WakeAt,
)
from hedged_pubsub._core.runs import WOKE, Runs
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.states import State
from hedged_pubsub._core.waiting import MAX_IN_FLIGHT, MIN_PAUSE

from .replay import core_batch
from .story import Transient

BACKS_OFF = Failed(ORIGINAL, Transient(), transient=True, backoff=30.0)


class Topic:
    """A topic whose batches a test lets fail, succeed and wait."""

    def __init__(self, *, hedged: bool = True, **settings: object) -> None:
        self.runs: Runs[Batch] = Runs(HedgingSettings(**settings), hedged=hedged)  # type: ignore[arg-type]
        self.now = 0.0

    def commit(self) -> Batch:
        batch = core_batch()
        self.runs.commit(batch, self.now)
        return batch

    def wait(self, failed: Failed = BACKS_OFF) -> Batch:
        """Commit a batch whose original fails and backs off."""
        batch = self.commit()
        self.runs.handle(batch, failed, self.now)
        return batch

    def store(self, batch: Batch | None = None) -> list[object]:
        """Let a batch be stored, a fresh one unless told; return the runs that this lets go."""
        orders = self.runs.handle(batch or self.commit(), Succeeded(ORIGINAL), self.now)
        return let_go(orders)

    def fail(self, batch: Batch, failed: Failed = BACKS_OFF) -> None:
        self.runs.handle(batch, failed, self.now)


def let_go(orders: Sequence[Order]) -> list[object]:
    """Return the runs that are let go."""
    return [order.run for order in orders if isinstance(order, Resend)]


def test_each_stored_batch_lets_the_one_go_that_waits_longest() -> None:
    """Without a token, and once: the next one lets the next go."""
    topic = Topic()
    first, second = topic.wait(), topic.wait()
    topic.now = 0.1
    assert topic.store() == [first.run]
    assert first.run.in_flight == (ORIGINAL,)
    assert topic.store() == [second.run]
    assert topic.store() == []
    assert topic.runs.stats().hedges_due == 0


def test_one_that_was_let_go_lets_two_go() -> None:
    """Slow start: the number in flight doubles a round trip, up to its bound."""
    topic = Topic()
    waiting = [topic.wait() for _ in range(100)]
    wave = topic.store()
    sizes = []
    while wave:
        sizes.append(len(wave))
        batches = [batch for batch in waiting if batch.run in wave]
        wave = [run for batch in batches for run in topic.store(batch)]
    assert sizes[:6] == [1, 2, 4, 8, 16, 16]
    assert max(sizes) == MAX_IN_FLIGHT
    assert sum(sizes) == 100


def test_never_more_than_the_bound_are_in_flight() -> None:
    """Fresh batches let no more go; one that fails makes room, and lets none go."""
    topic = Topic()
    waiting = [topic.wait() for _ in range(30)]
    gone = [run for _ in range(30) for run in topic.store()]
    assert gone == [batch.run for batch in waiting[:MAX_IN_FLIGHT]]
    topic.fail(waiting[0])
    assert topic.store() == [waiting[MAX_IN_FLIGHT].run]
    topic.runs.handle(waiting[1], Abandoned(RuntimeError()), 0.0)
    topic.fail(waiting[2], Failed(ORIGINAL, Transient(), transient=True))
    assert len(topic.store()) == 1
    assert len(topic.store()) == 1
    assert topic.store() == []


def test_a_batch_that_always_fails_is_let_go_once_a_second() -> None:
    """It costs its policy and a request a second, however many others are stored."""
    topic = Topic()
    batch = topic.wait()
    times = []
    for tick in range(500):
        topic.now = tick / 100
        if topic.store():
            times.append(topic.now)
            topic.fail(batch)
    assert times == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_an_original_that_could_not_be_sent_need_not_rest() -> None:
    """It cost the service nothing."""
    topic = Topic()
    batch = topic.wait()
    assert topic.store() == [batch.run]
    topic.fail(batch, replace(BACKS_OFF, unsent=True))
    assert topic.store() == [batch.run]


def test_not_before_the_service_wants_it() -> None:
    """R15: not before a RetryInfo's delay, nor after RESOURCE_EXHAUSTED."""
    topic = Topic()
    asked = topic.wait(replace(BACKS_OFF, retry_after=2.5))
    topic.wait(replace(BACKS_OFF, exhausted=True))
    topic.now = 2.25
    assert topic.store() == []
    topic.now = 2.5
    assert topic.store() == [asked.run]
    assert topic.store() == []


def test_what_waits_no_more_is_not_let_go() -> None:
    """Its policy had it sent, a probe was stored, or it was given up."""
    topic = Topic(initial_tokens=1)
    resent = topic.wait(replace(BACKS_OFF, backoff=0.5))
    probed, given_up = topic.wait(), topic.wait()
    later = topic.commit()
    topic.runs.handle(resent, WOKE, 0.5)
    topic.runs.handle(given_up, Abandoned(RuntimeError()), 0.5)
    orders = topic.runs.handle(probed, WOKE, 1.0)
    assert [order for order in orders if isinstance(order, Start)] == [Start(1, timeout=10.0)]
    topic.runs.handle(later, replace(BACKS_OFF, retry_after=3.0, backoff=0.4), 1.05)
    assert let_go(topic.runs.handle(probed, Succeeded(1), 1.1)) == []
    topic.runs.handle(later, WOKE, 1.5)
    topic.now = 5.0
    assert topic.store() == []


def test_timers_go_on_as_they_were() -> None:
    """Letting go moves no hedge timer, and the retry it replaces is not due any more."""
    topic = Topic(initial_tokens=5, max_hedges=1)
    batch = topic.wait(replace(BACKS_OFF, backoff=0.75))
    topic.now = 0.5
    assert topic.store() == [batch.run]
    assert topic.runs.handle(batch, WOKE, 0.75) == [WakeAt(1.0)]
    assert Start(1, timeout=10.0) in topic.runs.handle(batch, WOKE, 1.0)


def test_one_probe_a_topic_and_hedge_delay() -> None:
    """R3: of the batches that back off; what is in flight is hedged all the same."""
    topic = Topic(initial_tokens=50)
    batches = [topic.wait() for _ in range(20)]
    fresh = topic.commit()
    sent = []
    for second in (1.0, 2.0, 3.0):
        for batch in (*batches, fresh):
            orders = topic.runs.handle(batch, WOKE, second)
            sent += [(second, batch) for order in orders if isinstance(order, Start)]
    assert sent == [(s, b) for s in (1.0, 2.0, 3.0) for b in (batches[0], fresh)]
    assert topic.runs.stats().hedges_suppressed == 0


@pytest.mark.parametrize("timeout", [600.0, 100.0])
def test_thousands_that_wait_have_few_timers(timeout: float) -> None:
    """Each keeps its phase, and has its timer within one delay once it is sent again (R2).

    Also where so many wait that their turns would be spread over more time than they have.
    """
    topic = Topic(initial_tokens=50)
    batches = []
    for number in range(1000):
        topic.now = number / 1000
        batch = core_batch(total_timeout=timeout)
        topic.runs.commit(batch, topic.now)
        topic.fail(batch, replace(BACKS_OFF, backoff=timeout - 10))
        batches.append(batch)
    woken = probes = 0
    for tick in range(1000, 20_000):
        topic.now = tick / 1000
        for batch in batches:
            due = batch.run.next_wakeup
            if due is not None and due <= topic.now:
                woken += 1
                orders = topic.runs.handle(batch, WOKE, topic.now)
                for order in orders:
                    if isinstance(order, Start):
                        probes += 1
                        failed = Failed(order.attempt, Transient())
                        topic.runs.handle(batch, failed, topic.now)
    assert probes >= 18
    assert woken < 1000 + 19 * 10
    (run,) = topic.store()
    (number,) = [n for n, batch in enumerate(batches) if batch.run is run]
    told, due = batches[number].run.wake_at, batches[number].run.next_wakeup
    assert due is not None
    assert topic.now < due <= topic.now + 1.0
    assert round(due - number / 1000, 6) % 1.0 == 0
    timer = [WakeAt(due)] if due != told else []
    assert topic.runs.resend(batches[number]) == [*timer, Start(ORIGINAL)]


def test_topics_prove_nothing_of_each_other() -> None:
    """A topic may be refused while another is served."""
    topic = Topic()
    topic.wait()
    other = Batch("other", 600.0, has_extras=False)
    topic.runs.commit(other, 0.0)
    assert let_go(topic.runs.handle(other, Succeeded(ORIGINAL), 0.0)) == []


@pytest.mark.parametrize("arguments", [{"hedged": False}, {"observe_only": True}])
def test_without_hedges_the_policy_alone_decides(arguments: dict[str, bool]) -> None:
    """With hedging off, or only observed, not a request is sent that would not be otherwise."""
    topic = Topic(**arguments)
    batch = topic.wait()
    lost = topic.wait(replace(BACKS_OFF, connection_lost=True))
    assert topic.store() == []
    for one in (batch, lost):
        assert one.run.state is State.BACKING_OFF
    assert topic.runs.handle(lost, WOKE, 0.5) == []


def test_a_lost_connection_is_no_reason_to_wait() -> None:
    """R17: sent again at once, but one that loses connection after connection waits in between."""
    topic = Topic()
    lost = replace(BACKS_OFF, connection_lost=True)
    batch = topic.commit()
    assert topic.runs.handle(batch, lost, 0.25) == [WakeAt(0.25)]
    assert Start(ORIGINAL) in topic.runs.handle(batch, WOKE, 0.25)
    assert topic.runs.handle(batch, lost, 0.5) == []
    assert batch.run.next_wakeup == 1.0, "the hedge timer"
    topic.now = 0.25 + MIN_PAUSE
    assert topic.store() == [batch.run]


def test_what_has_gone_leaves_nothing_behind() -> None:
    """However often originals come and go, there is nothing left of those that are decided."""
    topic = Topic()
    for number in range(100):
        topic.now = number / 10
        batch = topic.wait(replace(BACKS_OFF, retry_after=(number % 3) * 0.75))
        if number % 2:
            topic.store()
        topic.runs.handle(batch, Abandoned(RuntimeError()), topic.now)
    topic.now = math.nextafter(topic.now + MIN_PAUSE, math.inf)
    topic.store(topic.commit())
    waiting = topic.runs.topics["topic"].waiting
    topic.wait(replace(BACKS_OFF, retry_after=1.0))
    assert len(waiting.ready) == waiting.in_flight == 0
    assert len(waiting.later) < 10, "those of the last second"
