"""Several batches and one bucket under arbitrary interleavings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.engine import MAX_HEDGE_TIMEOUT
from hedged_pubsub._core.events import (
    ORIGINAL,
    Abandoned,
    Cancel,
    Event,
    Fail,
    Failed,
    Order,
    Resolve,
    Start,
    Succeeded,
    Suppressed,
    WakeAt,
)
from hedged_pubsub._core.runs import WOKE, Runs
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.token_bucket import TokenBucket

_HEDGE_DELAY = 1.0


@dataclass(eq=False)
class Tracked:
    """A batch with what a driver would know about it."""

    batch: Batch
    committed_at: float
    to_send: list[int] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    wake_at: float = math.inf
    hedged_at: float = -math.inf
    hedges: int = 0
    outcomes: list[Resolve | Fail] = field(default_factory=list)

    @property
    def sent(self) -> list[int]:
        """The attempts that can be answered."""
        return [attempt for attempt in self.in_flight if attempt not in self.to_send]


class Interleavings(RuleBasedStateMachine):
    """Batches come, are answered, fail and are woken in any order, and are sent late."""

    batches = Bundle("batches")

    @initialize(max_tokens=st.integers(1, 3), ratio=st.sampled_from([0.1, 0.2, 0.001]))
    def start(self, max_tokens: int, ratio: float) -> None:
        self.now = 0.0
        self.max_tokens = max_tokens
        self.ratio = ratio
        self.runs: Runs[Batch] = Runs(
            HedgingSettings(hedge_delay=_HEDGE_DELAY, max_tokens=max_tokens, refill_ratio=ratio)
        )
        self.successes = 0
        self.hedges_paid = 0
        self.tracked: list[Tracked] = []

    @property
    def bucket(self) -> TokenBucket:
        return self.runs.topics["topic"].bucket

    def tell(self, one: Tracked, event: Event) -> None:
        """Hand on an event and check what is to be done."""
        was_decided = one.batch.run.decided
        orders = self.runs.handle(one.batch, event, self.now)
        assert not (was_decided and orders), "a decided batch is told nothing"
        self.check(one, event, orders)

    def check(self, one: Tracked, event: Event | None, orders: Sequence[Order]) -> None:
        """Check every order against what is known of the batch."""
        for number, order in enumerate(orders):
            assert not one.outcomes, "nothing follows the outcome"
            if isinstance(order, WakeAt):
                assert number == 0
                assert order.when != one.wake_at
                one.wake_at = order.when
            elif isinstance(order, Start):
                self.started(one, order)
            elif isinstance(order, Cancel):
                one.in_flight.remove(order.attempt)  # raises unless it is in flight
            elif isinstance(order, Suppressed):
                assert self.bucket.tokens < 1
                assert one.in_flight
            else:
                assert isinstance(order, Resolve | Fail)
                one.outcomes.append(order)
                assert not one.in_flight, "every attempt has ended or was cancelled"
                if isinstance(order, Resolve):
                    assert event == Succeeded(order.attempt)
                    self.successes += 1

    def started(self, one: Tracked, order: Start) -> None:
        assert order.attempt not in one.in_flight
        if order.attempt != ORIGINAL:
            assert one.in_flight, "a hedge runs beside something"
            one.hedges += 1
            self.hedges_paid += 1
            assert order.attempt == one.hedges, "hedges are numbered without a gap"
            time_left = one.committed_at + one.batch.total_timeout - self.now
            assert order.timeout == min(MAX_HEDGE_TIMEOUT, time_left)
            assert order.timeout > 0
            assert self.now >= max(one.committed_at, one.hedged_at) + _HEDGE_DELAY
            one.hedged_at = self.now
        one.in_flight.append(order.attempt)
        one.to_send.append(order.attempt)

    @rule(target=batches, total_timeout=st.sampled_from([1.5, 5.0, 30.0, math.inf]))
    def commit(self, total_timeout: float) -> Tracked:
        one = Tracked(Batch("topic", total_timeout, has_extras=False), self.now)
        self.tracked.append(one)
        self.check(one, None, self.runs.commit(one.batch, self.now))
        assert one.in_flight == [ORIGINAL]
        return one

    @rule(seconds=st.floats(0.0, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(one=batches)
    def wake(self, one: Tracked) -> None:
        self.tell(one, WOKE)
        due = one.batch.run.next_wakeup
        assert due is None or due > self.now, "what was due has been dealt with"

    @rule(one=batches)
    def send(self, one: Tracked) -> None:
        if one.to_send:
            attempt = one.to_send.pop(0)
            is_wanted = self.runs.is_wanted(one.batch, attempt, self.now, is_logged=False)
            assert is_wanted == (attempt in one.in_flight)
            self.hedges_paid -= not is_wanted and attempt != ORIGINAL

    @rule(one=batches, data=st.data())
    def succeed(self, one: Tracked, data: st.DataObject) -> None:
        if one.sent:
            attempt = data.draw(st.sampled_from(one.sent))
            one.in_flight.remove(attempt)
            self.tell(one, Succeeded(attempt))
            assert one.outcomes == [Resolve(attempt)]

    @rule(
        one=batches,
        data=st.data(),
        transient=st.booleans(),
        backoff=st.none() | st.floats(0.0, 4.0),
    )
    def fail(self, one: Tracked, data: st.DataObject, transient: bool, backoff: float) -> None:
        if not one.sent:
            return
        attempt = data.draw(st.sampled_from(one.sent))
        one.in_flight.remove(attempt)
        others = list(one.in_flight)
        error = RuntimeError()
        self.tell(one, Failed(attempt, error, transient=transient, backoff=backoff))
        if attempt == ORIGINAL and not transient:
            assert one.outcomes == [Fail(error)]
        elif attempt == ORIGINAL and others:
            assert not one.outcomes, "a hedge in flight is waited for"

    @rule(one=batches, attempt=st.integers(0, 3))
    def loser_reports(self, one: Tracked, attempt: int) -> None:
        if one.outcomes:
            self.tell(one, Succeeded(attempt))
            self.tell(one, Failed(attempt, RuntimeError(), transient=True, backoff=0.1))

    @rule(one=batches)
    def abandon(self, one: Tracked) -> None:
        self.tell(one, Abandoned(RuntimeError("given up")))
        assert len(one.outcomes) == 1

    @invariant()
    def one_outcome_at_most(self) -> None:
        for one in self.tracked:
            run = one.batch.run
            assert len(one.outcomes) == run.decided
            assert sorted(run.in_flight) == sorted(one.in_flight)
            assert (one.batch in self.runs.batches.values()) is not run.decided

    @invariant()
    def an_undecided_batch_has_something_to_wait_for(self) -> None:
        for one in self.tracked:
            due = one.batch.run.next_wakeup
            if one.outcomes:
                assert due is None
            else:
                assert one.in_flight or due is not None
                assert due in (None, one.wake_at), "the driver knows when"

    @invariant()
    def hedges_are_paid_for(self) -> None:
        if self.tracked:
            assert 0 <= self.bucket.tokens <= self.max_tokens
            earned = self.successes * self.ratio
            assert self.hedges_paid + self.bucket.tokens <= earned + 1e-9


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True
)
