"""Several batches and one bucket under arbitrary interleavings."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from hedged_pubsub.engine import MAX_HEDGE_TIMEOUT, AttemptEngine
from hedged_pubsub.events import (
    ORIGINAL,
    Abandoned,
    Cancel,
    Committed,
    Event,
    Fail,
    Failed,
    Resolve,
    Start,
    Succeeded,
    Suppressed,
    Woke,
)
from hedged_pubsub.token_bucket import TokenBucket

_HEDGE_DELAY = 1.0


@dataclass(eq=False)
class Tracked:
    """A batch with what a driver would know about it."""

    engine: AttemptEngine
    committed_at: float
    total_timeout: float
    in_flight: list[int] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    outcomes: list[Resolve | Fail] = field(default_factory=list)
    hedges: int = 0


class Interleavings(RuleBasedStateMachine):
    """Batches come, are answered, fail and are looked at in any order."""

    batches = Bundle("batches")

    @initialize(max_tokens=st.integers(1, 3), ratio=st.sampled_from([0.1, 0.2, 0.001]))
    def start(self, max_tokens: int, ratio: float) -> None:
        self.now = 0.0
        self.max_tokens = max_tokens
        self.ratio = ratio
        self.bucket = TokenBucket(max_tokens, ratio)
        self.successes = 0
        self.hedges = 0
        self.tracked: list[Tracked] = []

    def tell(self, batch: Tracked, event: Event) -> None:
        """Hand on an event and check every command against what is known of the batch."""
        was_decided = batch.engine.decided
        commands = batch.engine.handle(event, self.now)
        if was_decided:
            assert commands == [], "a decided batch hears nothing"
        for command in commands:
            assert not batch.outcomes, "nothing follows the outcome"
            if isinstance(command, Start):
                self.started(batch, command)
            elif isinstance(command, Cancel):
                batch.in_flight.remove(command.attempt)  # raises unless it is in flight
            elif isinstance(command, Suppressed):
                assert self.bucket.tokens < 1
                assert batch.in_flight
            else:
                batch.outcomes.append(command)
                assert not batch.in_flight, "every attempt has ended or was cancelled"
                if isinstance(command, Resolve):
                    assert isinstance(event, Succeeded)
                    assert command.attempt == event.attempt
                    self.successes += 1

    def started(self, batch: Tracked, command: Start) -> None:
        assert command.attempt not in batch.in_flight
        if command.attempt != ORIGINAL:
            assert batch.in_flight, "a hedge runs beside something"
            batch.hedges += 1
            self.hedges += 1
            assert command.attempt == batch.hedges, "hedges are numbered without a gap"
            time_left = batch.committed_at + batch.total_timeout - self.now
            assert command.timeout == min(MAX_HEDGE_TIMEOUT, time_left)
            assert command.timeout > 0
            if batch.looks:
                assert self.now >= batch.looks[-1] + _HEDGE_DELAY
            assert self.now >= batch.committed_at + _HEDGE_DELAY
            batch.looks.append(self.now)
        batch.in_flight.append(command.attempt)

    @rule(target=batches, total_timeout=st.sampled_from([1.5, 5.0, 30.0, math.inf]))
    def commit(self, total_timeout: float) -> Tracked:
        engine = AttemptEngine(
            hedge_delay=_HEDGE_DELAY, bucket=self.bucket, total_timeout=total_timeout
        )
        batch = Tracked(engine, self.now, total_timeout)
        self.tracked.append(batch)
        self.tell(batch, Committed())
        assert batch.in_flight == [ORIGINAL]
        return batch

    @rule(seconds=st.floats(0.0, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(batch=batches)
    def wake(self, batch: Tracked) -> None:
        self.tell(batch, Woke())
        due = batch.engine.next_wakeup
        assert due is None or due > self.now, "what was due has been dealt with"

    @rule(batch=batches, data=st.data())
    def succeed(self, batch: Tracked, data: st.DataObject) -> None:
        if batch.in_flight:
            attempt = data.draw(st.sampled_from(batch.in_flight))
            batch.in_flight.remove(attempt)
            self.tell(batch, Succeeded(attempt))
            assert [type(outcome) for outcome in batch.outcomes] == [Resolve]

    @rule(
        batch=batches,
        data=st.data(),
        transient=st.booleans(),
        backoff=st.none() | st.floats(0.0, 4.0),
    )
    def fail(
        self, batch: Tracked, data: st.DataObject, transient: bool, backoff: float | None
    ) -> None:
        if not batch.in_flight:
            return
        attempt = data.draw(st.sampled_from(batch.in_flight))
        batch.in_flight.remove(attempt)
        others = list(batch.in_flight)
        error = RuntimeError()
        self.tell(batch, Failed(attempt, error, transient=transient, backoff=backoff))
        if attempt == ORIGINAL and not transient:
            assert batch.outcomes == [Fail(error)]
        elif attempt == ORIGINAL and others:
            assert not batch.outcomes, "a hedge in flight is waited for"

    @rule(batch=batches, attempt=st.integers(0, 3))
    def loser_reports(self, batch: Tracked, attempt: int) -> None:
        if batch.outcomes:
            self.tell(batch, Succeeded(attempt))
            self.tell(batch, Failed(attempt, RuntimeError(), transient=True, backoff=0.1))

    @rule(batch=batches)
    def abandon(self, batch: Tracked) -> None:
        self.tell(batch, Abandoned(RuntimeError("given up")))
        assert len(batch.outcomes) == 1

    @invariant()
    def one_outcome_at_most(self) -> None:
        for batch in self.tracked:
            assert len(batch.outcomes) == batch.engine.decided
            assert sorted(batch.engine.in_flight) == sorted(batch.in_flight)
            if batch.engine.decided:
                assert batch.engine.next_wakeup is None

    @invariant()
    def an_undecided_batch_has_something_to_wait_for(self) -> None:
        for batch in self.tracked:
            if not batch.engine.decided:
                assert batch.in_flight or batch.engine.next_wakeup is not None

    @invariant()
    def hedges_are_paid_for(self) -> None:
        if self.tracked:
            assert 0 <= self.bucket.tokens <= self.max_tokens
            earned = self.successes * self.ratio
            assert self.hedges + self.bucket.tokens <= earned + 1e-9


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, derandomize=True
)
