"""The attempt engine: what happens to one batch from its commit to its one outcome.

Retries and hedges of a batch are one state machine, because three clocks race in it: the retry
backoff, the hedge delay and the deadline. The engine is told what happened and when, and answers
with what to do. It has no thread, clock, randomness, lock, log line or callback of its own, so
that every race is a plain test; a driver (threads or asyncio) is the thin rest.

The rules. Attempt 0 is the original, hedges are 1, 2, …; t0 is the time of the commit.

* R1: the original goes out at once, with the caller's timeout and retry policy.
* R2: the hedge timer is due at t0 + hedge delay, and again one delay after each time it ran. If it
  runs late, the next times are later too: there are no catch-up bursts.
* R3: when the hedge timer is due, in this order: the batch is decided: nothing. The total timeout
  has passed: hedging ends. The timer itself is late: R13. ``max_hedges`` are reached: hedging ends.
  A hedge could not be sent (R14), or hedging was pushed back (R15): no token, next delay. The
  original is in flight, or only hedges are: a token: take it, send hedge k without retry, for
  min(10 s, time left). The original is backing off: likewise, as a probe, one a topic and hedge
  delay. No token: count the hedge as suppressed and try again a delay later, so that a batch
  stalled in an outage is rescued once others succeed again; the bucket bounds the load all the
  same. Where hedges are only observed, the token is taken, none is sent, and the first one that is
  due, sent or suppressed, is a batch's last.
* R4: the first success decides: refill the bucket once, cancel every other attempt, resolve.
* R5: the failure of a hedge, whatever its code, never fails the batch.
* R6: the original fails for good: fail now, cancel the hedges. It fails transiently and may be
  sent again: back off, then resend, in the same batch. It fails transiently and may not: wait for
  the hedges in flight, if any; else fail. The error is always the original's.
* R7: what a decided batch is told changes nothing: a loser that we cancelled is no failure.
* R13: our own lateness is not the service's. A hedge timer that is more than 100 ms late is due
  once more, 50 ms on, so that what was answered meanwhile is taken in.
* R14: a hedge cannot shorten a wait that it would share: for a connection or a token. When that is
  over the original has only just been sent, and gets one more delay.
* R15: RetryInfo in the answer to any attempt suspends hedging on the topic for its delay;
  RESOURCE_EXHAUSTED without one for one hedge delay.
* R16: a batch that is stored lets an original of its topic that is backing off be sent again now;
  see ``waiting``. Not before a RetryInfo's delay, nor after RESOURCE_EXHAUSTED.
* R17: an original whose connection was lost under it is sent again at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hedged_pubsub._core.events import (
    LET_GO,
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
    HeldBack,
    LetGo,
    Resend,
    Resolve,
    Start,
    Succeeded,
    Suppressed,
    Woke,
)
from hedged_pubsub._core.hedge_budget import AFTER_LATENESS, MAX_LATENESS, Decision, HedgeBudget
from hedged_pubsub._core.states import State, Step
from hedged_pubsub._core.waiting import MIN_PAUSE, Waiting

MAX_HEDGE_TIMEOUT: Final = 10.0
"""Seconds a hedge may take at most: the largest hedge delay. One that is slower than this is in
the same trouble as the attempt it was to beat, and the other clients use the same bound."""


_NOT_SENT: Final[Mapping[Decision, Command]] = {
    Decision.SUPPRESS: Suppressed(),
    Decision.HOLD_BACK: HeldBack(),
}
"""What is told of a hedge that was due and is not sent."""

# Held by every batch under way, so that none has a list of its own.
_ONLY_ORIGINAL: Final = (ORIGINAL,)


class IllegalEventError(RuntimeError):
    """An event that cannot happen in this state: a defect of the driver. The state is unchanged."""


class AttemptEngine:
    """The state machine of one batch.

    Not thread-safe: the driver serialises the calls for all batches of a topic.

    Args:
        hedge_delay: Seconds of the hedge timer, or ``None`` for a batch that is never hedged.
        budget: Decides about hedges, for all batches of the topic.
        waiting: The originals of the topic that are backing off.
        total_timeout: Seconds from the commit after which neither a hedge nor a resend of the
            original starts; ``math.inf`` for no limit.

    Attributes:
        state: Where the batch stands.
        decided: Whether it has its outcome.
        in_flight: The attempts that were started and have not ended, oldest first.
        hedges: How many hedges were asked for.
        next_wakeup: When ``Woke`` is due next, in the driver's monotonic seconds; ``None`` for
            never.
        committed_at: When the batch was committed: t0.
        winner: The attempt that was answered first, once one was.
        losers: The attempts that were in flight when the batch was decided.
        original_latency: Seconds from the last start of the original to its success, or to the
            success of a hedge meanwhile, which is a lower bound of what it would have taken.
            ``None`` before, and for a batch whose original was not in flight at its success.
        original_sent_at: When the original was sent last.
        may_go_at: When an original that is backing off may be let go.
    """

    __slots__ = (
        "_budget",
        "_deadline",
        "_hedge_at",
        "_hedge_delay",
        "_is_let_go",
        "_let_go_at",
        "_original_failure",
        "_retry_at",
        "_shared_wait",
        "_total_timeout",
        "_waiting",
        "committed_at",
        "decided",
        "hedges",
        "in_flight",
        "losers",
        "may_go_at",
        "next_wakeup",
        "original_latency",
        "original_sent_at",
        "state",
        "winner",
    )

    def __init__(
        self,
        *,
        hedge_delay: float | None,
        budget: HedgeBudget,
        waiting: Waiting,
        total_timeout: float,
    ) -> None:
        self._hedge_delay = hedge_delay
        self._budget = budget
        self._waiting = waiting
        self._total_timeout = total_timeout
        self.state = State.NEW
        self.decided = False
        self._hedge_at = math.inf
        self._retry_at = math.inf
        self._let_go_at = -math.inf
        self._is_let_go = self._shared_wait = False
        self.may_go_at = math.inf
        self.hedges = 0
        self.in_flight: tuple[int, ...] = ()
        self.next_wakeup: float | None = None
        self._original_failure: Fail | None = None
        self.committed_at = 0.0
        self.winner: int | None = None
        self.losers: tuple[int, ...] = ()
        self.original_latency: float | None = None

    def is_hedge_due(self, now: float) -> bool:
        """Tell whether the hedge timer is due, and a hedge would not be one probe too many."""
        return self._hedge_at <= now and (
            self.state is not State.BACKING_OFF or self._budget.may_probe(now)
        )

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take in what happened at a monotonic second; return what to do, in this order.

        Raises:
            IllegalEventError: If the event cannot happen now; nothing has changed then.
        """
        if self.decided:
            return []
        kind = type(event)
        commands: list[Command]
        if kind is Committed:
            commands = self._take(Step.COMMITTED, event, now)
        elif isinstance(event, (Succeeded, Failed)):
            if event.attempt not in self.in_flight:
                raise IllegalEventError(
                    f"attempt {event.attempt} cannot end, in flight are {list(self.in_flight)} "
                    f"of a batch: {self.state.value}"
                )
            step = Step.SUCCEEDED
            if isinstance(event, Failed):
                step = self._classify(event, now)
                self._heed(event, now)
            commands = self._take(step, event, now)
        elif kind is Abandoned:
            commands = self._take(Step.ABANDONED, event, now)
        elif kind is LetGo:
            commands = self._take(Step.LET_GO, event, now)
        else:
            commands = []
            while (due := min(self._hedge_at, self._retry_at)) <= now:
                step = Step.HEDGE_TIMER_DUE if due == self._hedge_at else Step.RETRY_DUE
                commands += self._take(step, event, now)
        due = min(self._hedge_at, self._retry_at)
        self.next_wakeup = None if due == math.inf else due
        return commands

    def _take(self, step: Step, event: Event, now: float) -> list[Command]:
        transition = TRANSITIONS.get((self.state, step))
        if transition is None:
            raise IllegalEventError(f"{event!r} cannot happen to a batch: {self.state.value}")
        self.state = transition.to
        return transition.action(self, event, now)

    def _classify(self, event: Failed, now: float) -> Step:
        others = len(self.in_flight) > 1
        if event.attempt != ORIGINAL:
            last = self.state is State.HEDGES_ONLY and not others
            return Step.LAST_HEDGE_FAILED if last else Step.HEDGE_FAILED
        if not event.transient:
            return Step.ORIGINAL_FAILED
        if event.backoff is not None and now + event.backoff <= self._deadline:
            return Step.ORIGINAL_MAY_RETRY
        return Step.ORIGINAL_SPENT if others else Step.ORIGINAL_FAILED

    def _heed(self, event: Failed, now: float) -> None:
        if self._hedge_delay is not None and (event.exhausted or event.retry_after is not None):
            self._budget.push_back(event.retry_after, self._hedge_delay, now)

    def _remove(self, attempt: int) -> None:
        self.in_flight = tuple(one for one in self.in_flight if one != attempt)

    # --- Actions. Each runs after the state has changed and returns the commands.

    def _commit(self, event: Committed, now: float) -> list[Command]:
        self.committed_at = now
        self._deadline = now + self._total_timeout
        self._set_hedge_timer(now, self._hedge_delay)
        return self._send_original(event, now)

    def _send_original(self, _event: Event, now: float) -> list[Command]:
        self.original_sent_at = now
        self._retry_at = math.inf
        self.in_flight += _ONLY_ORIGINAL
        return [START_ORIGINAL]

    def _resend(self, event: Event, now: float) -> list[Command]:
        self._waiting.remove(self)
        self._shared_wait = False
        if self._hedge_delay and now + self._hedge_delay < self._hedge_at < math.inf:
            delays = math.ceil((self._hedge_at - now) / self._hedge_delay) - 1
            self._hedge_at -= delays * self._hedge_delay
        return self._send_original(event, now)

    def _let_go(self, event: Event, now: float) -> list[Command]:
        self._is_let_go = True
        self._let_go_at = now
        return self._resend(event, now)

    def _hedge(self, event: Woke, now: float) -> list[Command]:
        due = self._hedge_at
        is_late = now - due > MAX_LATENESS
        delay, time_left = self._hedge_delay or 0.0, self._deadline - now
        self._set_hedge_timer(now, AFTER_LATENESS if is_late else delay)
        if time_left <= 0:
            return []
        if is_late:
            self._budget.was_late(due, now)
            return []
        shared_wait, self._shared_wait = self._shared_wait, event.shares_wait
        decision = self._budget.decide(
            now,
            hedges=self.hedges,
            shares_wait=event.shares_wait or (shared_wait and ORIGINAL in self.in_flight),
            probes=delay if self.state is State.BACKING_OFF else None,
        )
        if decision is Decision.NOTHING and not self.in_flight:
            # Of all that wait, a few have a timer within one delay; the others' would be in vain.
            skipped = min(self._waiting.spread, max(0.0, self._deadline - self._hedge_at) // delay)
            self._hedge_at += skipped * delay
        if decision is Decision.END or (self._budget.observe_only and decision in _NOT_SENT):
            self._hedge_at = math.inf
        if decision is not Decision.SEND:
            return [_NOT_SENT[decision]] if decision in _NOT_SENT else []
        self.hedges += 1
        self.in_flight += (self.hedges,)
        return [Start(self.hedges, timeout=min(MAX_HEDGE_TIMEOUT, time_left))]

    def _back_off(self, event: Failed, now: float) -> list[Command]:
        self._original_ended()
        rested_at = self._let_go_at + MIN_PAUSE
        if event.connection_lost and now >= rested_at and self._waiting.enabled:
            self._retry_at = self._let_go_at = now
            return []
        self._retry_at = now + (event.backoff or 0.0)
        may_go_at = now if event.unsent else max(now, rested_at)
        if event.retry_after is not None:
            may_go_at = max(may_go_at, now + event.retry_after)
        self._waiting.add(self, math.inf if event.exhausted else may_go_at, now)
        return []

    def _wait_for_hedges(self, event: Failed, _now: float) -> list[Command]:
        self._original_ended()
        self._original_failure = _failure(event)
        return []

    def _original_ended(self) -> None:
        self._remove(ORIGINAL)
        if self._is_let_go:
            self._is_let_go = False
            self._waiting.in_flight -= 1

    def _forget_hedge(self, event: Failed, _now: float) -> list[Command]:
        self._remove(event.attempt)
        return []

    def _resolve(self, event: Succeeded, now: float) -> list[Command]:
        if ORIGINAL in self.in_flight:
            self.original_latency = now - self.original_sent_at
        budget, waiting = self._budget, self._waiting
        if now - self._hedge_at > MAX_LATENESS:
            budget.was_late(self._hedge_at, now)  # the answer was faster than the timer
        budget.batch_stored()
        self.winner = event.attempt
        self._remove(event.attempt)
        count = 2 if self._is_let_go else 1
        # Attempt 0 is the usual one: its command is made once for all batches.
        resolve = Resolve(event.attempt) if event.attempt else RESOLVE_ORIGINAL
        commands = self._end()
        commands.append(resolve)
        if waiting.ready or waiting.later:
            for other in waiting.pick(count, now):
                other.handle(LET_GO, now)
                commands.append(Resend(other))
        return commands

    def _fail(self, event: Failed, _now: float) -> list[Command]:
        failure = self._original_failure or _failure(event)
        self._remove(event.attempt)
        return [*self._end(), failure]

    def _abandon(self, event: Abandoned, _now: float) -> list[Command]:
        return [*self._end(), Fail(event.error)]

    def _set_hedge_timer(self, now: float, delay: float | None) -> None:
        if delay is not None:
            due = now + delay
            self._hedge_at = due if due < self._deadline else math.inf

    def _end(self) -> list[Command]:
        """Leave nothing scheduled, in flight or held on to; cancel what was in flight."""
        self.decided = True
        if self._is_let_go:
            self._waiting.in_flight -= 1
        if self._retry_at != math.inf:
            self._waiting.remove(self)
        self.losers = self.in_flight
        self.in_flight = ()
        self._hedge_at = self._retry_at = math.inf
        self._original_failure = None
        return [Cancel(attempt) for attempt in self.losers]


def _failure(event: Failed) -> Fail:
    # An original that was given a backoff and ends all the same ran out of its retry timeout.
    return Fail(event.error, retry_timed_out=event.transient and event.backoff is not None)


class Transition(NamedTuple):
    """One row of the table: where a step leads, what it does, and the rule behind it."""

    to: State
    action: Callable[[AttemptEngine, Any, float], list[Command]]
    rule: str


def _table() -> Mapping[tuple[State, Step], Transition]:
    """Return the whole of it. What is not here cannot happen; the decided are told nothing (R7)."""
    do = AttemptEngine
    new, in_flight, backing_off, hedges_only, decided = State
    return {
        (new, Step.COMMITTED): Transition(in_flight, do._commit, "R1"),
        (new, Step.ABANDONED): Transition(decided, do._abandon, "R8"),
        #
        (in_flight, Step.HEDGE_TIMER_DUE): Transition(in_flight, do._hedge, "R3"),
        (in_flight, Step.SUCCEEDED): Transition(decided, do._resolve, "R4"),
        (in_flight, Step.HEDGE_FAILED): Transition(in_flight, do._forget_hedge, "R5"),
        (in_flight, Step.ORIGINAL_MAY_RETRY): Transition(backing_off, do._back_off, "R6"),
        (in_flight, Step.ORIGINAL_SPENT): Transition(hedges_only, do._wait_for_hedges, "R6"),
        (in_flight, Step.ORIGINAL_FAILED): Transition(decided, do._fail, "R6"),
        (in_flight, Step.ABANDONED): Transition(decided, do._abandon, "R8"),
        #
        (backing_off, Step.RETRY_DUE): Transition(in_flight, do._resend, "R6"),
        (backing_off, Step.LET_GO): Transition(in_flight, do._let_go, "R16"),
        (backing_off, Step.HEDGE_TIMER_DUE): Transition(backing_off, do._hedge, "R3"),
        (backing_off, Step.SUCCEEDED): Transition(decided, do._resolve, "R4"),
        (backing_off, Step.HEDGE_FAILED): Transition(backing_off, do._forget_hedge, "R5"),
        (backing_off, Step.ABANDONED): Transition(decided, do._abandon, "R8"),
        #
        (hedges_only, Step.HEDGE_TIMER_DUE): Transition(hedges_only, do._hedge, "R3"),
        (hedges_only, Step.SUCCEEDED): Transition(decided, do._resolve, "R4"),
        (hedges_only, Step.HEDGE_FAILED): Transition(hedges_only, do._forget_hedge, "R5"),
        (hedges_only, Step.LAST_HEDGE_FAILED): Transition(decided, do._fail, "R6"),
        (hedges_only, Step.ABANDONED): Transition(decided, do._abandon, "R8"),
    }


TRANSITIONS: Final = _table()
