"""The attempt engine: what happens to one batch from its commit to its one outcome.

Retries and hedges of a batch are one state machine, because three clocks race in it: the retry
backoff, the hedge delay and the deadline. The engine is told what happened and when, and answers
with what to do. It has no thread, clock, randomness, lock, log line or callback of its own, so
that every race is a plain test; a driver (threads or asyncio) is the thin rest.

The rules. Attempt 0 is the original, hedges are 1, 2, …; t0 is the time of the commit.

* R1: the original goes out at once, with the caller's timeout and retry policy.
* R2: the first look is at t0 + hedge delay, each next one a delay after the last. A late look
  moves the following ones; missed looks are never made up for in a burst.
* R3: at a look, in this order: the batch is decided: nothing. Nothing is in flight, because the
  original is backing off: no hedge and no token. The total timeout has passed: no more looks. A
  token: take it, send hedge k without retry, for min(10 s, time left). No token: count the hedge
  as suppressed and look again a delay later, so that a batch stalled in an outage is rescued once
  others succeed again; the bucket bounds the load all the same.
* R4: the first success decides: refill the bucket once, cancel every other attempt, resolve.
* R5: the failure of a hedge, whatever its code, never fails the batch.
* R6: the original fails for good: fail now, cancel the hedges. It fails transiently and may be
  sent again: back off, then resend, in the same batch. It fails transiently and may not: wait for
  the hedges in flight, if any; else fail. The error is always the original's.
* R7: what a decided batch is told changes nothing: a loser that we cancelled is no failure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hedged_pubsub.events import (
    ORIGINAL,
    RESOLVE_ORIGINAL,
    START_ORIGINAL,
    Abandoned,
    Cancel,
    Command,
    Committed,
    Event,
    Fail,
    Failed,
    Resolve,
    Start,
    Succeeded,
    Suppressed,
)
from hedged_pubsub.token_bucket import TokenBucket

MAX_HEDGE_TIMEOUT: Final = 10.0
"""Seconds a hedge may take at most: the largest hedge delay. One that is slower than this is in
the same trouble as the attempt it was to overtake, and the other clients use the same bound."""


class State(enum.Enum):
    """Where a batch stands."""

    # The inherited one is a Python function, and every step looks a pair up in the table.
    __hash__ = object.__hash__

    NEW = "new"
    ORIGINAL_IN_FLIGHT = "original in flight"
    BACKING_OFF = "backing off"
    HEDGES_ONLY = "hedges only"
    DECIDED = "decided"


class Step(enum.Enum):
    """An event as the table knows it: told apart by attempt and by what is still possible."""

    __hash__ = object.__hash__

    COMMITTED = "committed"
    LOOK_DUE = "look due"
    RETRY_DUE = "retry due"
    SUCCEEDED = "an attempt succeeded"
    ORIGINAL_FAILED = "original failed for good"
    ORIGINAL_MAY_RETRY = "original failed, may retry"
    ORIGINAL_SPENT = "original failed, retries spent, hedges in flight"
    HEDGE_FAILED = "hedge failed"
    LAST_HEDGE_FAILED = "last hedge failed"
    ABANDONED = "abandoned"


class IllegalEventError(RuntimeError):
    """An event that cannot happen in this state: a defect of the driver. The state is unchanged."""


class AttemptEngine:
    """The state machine of one batch.

    Not thread-safe: the driver serialises the calls for all batches that share a bucket.

    Args:
        hedge_delay: Seconds between looks, or ``None`` for a batch that is never hedged.
        bucket: The token bucket of the batch's topic.
        total_timeout: Seconds from the commit after which neither a hedge nor a resend of the
            original starts; ``math.inf`` for no limit.

    Attributes:
        original_latency: Seconds from the last start of the original to its success, or to the
            success of a hedge meanwhile, which is a lower bound of what it would have taken.
            ``None`` before, and for a batch whose original was not in flight at its success.
    """

    __slots__ = (
        "_bucket",
        "_deadline",
        "_hedge_delay",
        "_hedges",
        "_in_flight",
        "_next_look",
        "_next_retry",
        "_original_failure",
        "_original_sent_at",
        "_state",
        "_total_timeout",
        "original_latency",
    )

    def __init__(
        self, *, hedge_delay: float | None, bucket: TokenBucket, total_timeout: float
    ) -> None:
        self._hedge_delay = hedge_delay
        self._bucket = bucket
        self._total_timeout = total_timeout
        self._state = State.NEW
        self._deadline = math.inf
        self._next_look = math.inf
        self._next_retry = math.inf
        self._hedges = 0
        self._in_flight: list[int] = []
        self._original_failure: Fail | None = None
        self._original_sent_at = 0.0
        self.original_latency: float | None = None

    @property
    def state(self) -> State:
        """Where the batch stands."""
        return self._state

    @property
    def decided(self) -> bool:
        """Whether the batch has its outcome."""
        return self._state is State.DECIDED

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The attempts that were started and have not ended, oldest first."""
        return tuple(self._in_flight)

    @property
    def next_wakeup(self) -> float | None:
        """When ``Woke`` is due next, in the driver's monotonic seconds; ``None`` for never."""
        due = min(self._next_look, self._next_retry)
        return None if due == math.inf else due

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in what happened and say what to do about it.

        Args:
            event: What happened.
            now: Monotonic seconds.

        Returns:
            The commands, to be carried out in this order.

        Raises:
            IllegalEventError: If the event cannot happen now; nothing has changed then.
        """
        if self._state is State.DECIDED:
            return []
        if isinstance(event, Committed):
            return self._take(Step.COMMITTED, event, now)
        if isinstance(event, Succeeded):
            self._require_in_flight(event.attempt)
            return self._take(Step.SUCCEEDED, event, now)
        if isinstance(event, Failed):
            self._require_in_flight(event.attempt)
            return self._take(self._classify(event, now), event, now)
        if isinstance(event, Abandoned):
            return self._take(Step.ABANDONED, event, now)
        commands: list[Command] = []
        while (due := min(self._next_look, self._next_retry)) <= now:
            step = Step.LOOK_DUE if due == self._next_look else Step.RETRY_DUE
            commands += self._take(step, event, now)
        return commands

    def _take(self, step: Step, event: Event, now: float) -> list[Command]:
        transition = TRANSITIONS.get((self._state, step))
        if transition is None:
            raise IllegalEventError(f"{event!r} cannot happen to a batch: {self._state.value}")
        self._state = transition.to
        return transition.action(self, event, now)

    def _require_in_flight(self, attempt: int) -> None:
        if attempt not in self._in_flight:
            raise IllegalEventError(
                f"attempt {attempt} cannot end, in flight are {self._in_flight} "
                f"of a batch: {self._state.value}"
            )

    def _classify(self, event: Failed, now: float) -> Step:
        others = len(self._in_flight) > 1
        if event.attempt != ORIGINAL:
            last = self._state is State.HEDGES_ONLY and not others
            return Step.LAST_HEDGE_FAILED if last else Step.HEDGE_FAILED
        if not event.transient:
            return Step.ORIGINAL_FAILED
        if event.backoff is not None and now + event.backoff <= self._deadline:
            return Step.ORIGINAL_MAY_RETRY
        return Step.ORIGINAL_SPENT if others else Step.ORIGINAL_FAILED

    # --- Actions. Each runs after the state has changed and returns the commands.

    def _commit(self, event: Committed, now: float) -> list[Command]:
        self._deadline = now + self._total_timeout
        self._schedule_look(now)
        return self._send_original(event, now)

    def _send_original(self, _event: Event, now: float) -> list[Command]:
        self._original_sent_at = now
        self._next_retry = math.inf
        self._in_flight.append(ORIGINAL)
        return [START_ORIGINAL]

    def _look(self, _event: Event, now: float) -> list[Command]:
        self._schedule_look(now)
        time_left = self._deadline - now
        if not self._in_flight or time_left <= 0:
            return []
        if not self._bucket.take():
            return [Suppressed()]
        self._hedges += 1
        self._in_flight.append(self._hedges)
        return [Start(self._hedges, timeout=min(MAX_HEDGE_TIMEOUT, time_left))]

    def _back_off(self, event: Failed, now: float) -> list[Command]:
        self._in_flight.remove(ORIGINAL)
        self._next_retry = now + (event.backoff or 0.0)
        return []

    def _wait_for_hedges(self, event: Failed, _now: float) -> list[Command]:
        self._in_flight.remove(ORIGINAL)
        self._original_failure = _failure(event)
        return []

    def _forget_hedge(self, event: Failed, _now: float) -> list[Command]:
        self._in_flight.remove(event.attempt)
        return []

    def _resolve(self, event: Succeeded, now: float) -> list[Command]:
        if ORIGINAL in self._in_flight:
            self.original_latency = now - self._original_sent_at
        self._bucket.refill()
        self._in_flight.remove(event.attempt)
        # Attempt 0 is the usual one: its command is not made anew for every batch.
        resolve = Resolve(event.attempt) if event.attempt else RESOLVE_ORIGINAL
        return [*self._end(), resolve]

    def _fail(self, event: Failed, _now: float) -> list[Command]:
        failure = self._original_failure or _failure(event)
        self._in_flight.remove(event.attempt)
        return [*self._end(), failure]

    def _abandon(self, event: Abandoned, _now: float) -> list[Command]:
        return [*self._end(), Fail(event.error)]

    def _schedule_look(self, now: float) -> None:
        if self._hedge_delay is not None:
            look = now + self._hedge_delay
            self._next_look = look if look < self._deadline else math.inf

    def _end(self) -> list[Command]:
        """Leave nothing scheduled, in flight or held on to; cancel what was in flight."""
        losers: list[Command] = [Cancel(attempt) for attempt in self._in_flight]
        self._in_flight.clear()
        self._next_look = self._next_retry = math.inf
        self._original_failure = None
        return losers


def _failure(event: Failed) -> Fail:
    # An original that was given a backoff and ends all the same ran out of its retry timeout.
    return Fail(event.error, retry_timed_out=event.transient and event.backoff is not None)


class Transition(NamedTuple):
    """One row of the table: where a step leads, what it does, and the rule behind it."""

    to: State
    action: Callable[[AttemptEngine, Any, float], list[Command]]
    rule: str


_ENGINE: Final = AttemptEngine
_IN_FLIGHT: Final = State.ORIGINAL_IN_FLIGHT

TRANSITIONS: Final[Mapping[tuple[State, Step], Transition]] = {
    (State.NEW, Step.COMMITTED): Transition(_IN_FLIGHT, _ENGINE._commit, "R1"),
    (State.NEW, Step.ABANDONED): Transition(State.DECIDED, _ENGINE._abandon, "R8"),
    #
    (_IN_FLIGHT, Step.LOOK_DUE): Transition(_IN_FLIGHT, _ENGINE._look, "R3"),
    (_IN_FLIGHT, Step.SUCCEEDED): Transition(State.DECIDED, _ENGINE._resolve, "R4"),
    (_IN_FLIGHT, Step.HEDGE_FAILED): Transition(_IN_FLIGHT, _ENGINE._forget_hedge, "R5"),
    (_IN_FLIGHT, Step.ORIGINAL_MAY_RETRY): Transition(State.BACKING_OFF, _ENGINE._back_off, "R6"),
    (_IN_FLIGHT, Step.ORIGINAL_SPENT): Transition(
        State.HEDGES_ONLY, _ENGINE._wait_for_hedges, "R6"
    ),
    (_IN_FLIGHT, Step.ORIGINAL_FAILED): Transition(State.DECIDED, _ENGINE._fail, "R6"),
    (_IN_FLIGHT, Step.ABANDONED): Transition(State.DECIDED, _ENGINE._abandon, "R8"),
    #
    (State.BACKING_OFF, Step.RETRY_DUE): Transition(_IN_FLIGHT, _ENGINE._send_original, "R6"),
    (State.BACKING_OFF, Step.LOOK_DUE): Transition(State.BACKING_OFF, _ENGINE._look, "R3"),
    (State.BACKING_OFF, Step.SUCCEEDED): Transition(State.DECIDED, _ENGINE._resolve, "R4"),
    (State.BACKING_OFF, Step.HEDGE_FAILED): Transition(
        State.BACKING_OFF, _ENGINE._forget_hedge, "R5"
    ),
    (State.BACKING_OFF, Step.ABANDONED): Transition(State.DECIDED, _ENGINE._abandon, "R8"),
    #
    (State.HEDGES_ONLY, Step.LOOK_DUE): Transition(State.HEDGES_ONLY, _ENGINE._look, "R3"),
    (State.HEDGES_ONLY, Step.SUCCEEDED): Transition(State.DECIDED, _ENGINE._resolve, "R4"),
    (State.HEDGES_ONLY, Step.HEDGE_FAILED): Transition(
        State.HEDGES_ONLY, _ENGINE._forget_hedge, "R5"
    ),
    (State.HEDGES_ONLY, Step.LAST_HEDGE_FAILED): Transition(State.DECIDED, _ENGINE._fail, "R6"),
    (State.HEDGES_ONLY, Step.ABANDONED): Transition(State.DECIDED, _ENGINE._abandon, "R8"),
}
"""The whole of it. A pair that is not here cannot happen; a decided batch hears nothing (R7)."""
