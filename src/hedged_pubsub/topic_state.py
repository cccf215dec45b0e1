"""What a publisher keeps of each topic: its bucket, its hedge delay, and what happened on it.

Nothing in here takes a lock, reads a clock or writes a log line: an engine's driver tells what its
engine was told and has decided, and calls what is due once it holds no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from hedged_pubsub.events import (
    ORIGINAL,
    Cancel,
    Command,
    Event,
    Fail,
    Failed,
    Resolve,
    Suppressed,
)
from hedged_pubsub.futility import Futility
from hedged_pubsub.hedge_delay import HedgeDelay, MeasuredDelay
from hedged_pubsub.hedge_log import CannotHelp, HedgeEnded, HedgeOutcome
from hedged_pubsub.histogram import bucket_of
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import Counters, Reading
from hedged_pubsub.token_bucket import TokenBucket

# What a request can end with although the service stored its messages.
_NOT_CERTAIN: Final = frozenset(
    {"ABORTED", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"}
)


class Durations(Protocol):
    """Takes what batches took to where it is exported."""

    def add(self, topic: str, outcome: str, error: str, seconds: float) -> bool:
        """Note what a batch took, without calling anybody.

        Args:
            topic: The topic's full name.
            outcome: ``"original"`` or ``"hedge"``, whichever was answered first, or ``"failed"``.
            error: What kind of error a batch failed with, else empty.
            seconds: From its commit to its outcome.

        Returns:
            Whether it is time to record what was noted.
        """

    def record(self) -> None:
        """Record what was noted. Runs a user's code."""


class Course:
    """What the numbers have to know of a batch on its way. A driver keeps one with each.

    Attributes:
        committed_at: When it was committed, in monotonic seconds; set by the driver.
        hedging: What is known of hedges and failures; most batches have neither.
    """

    __slots__ = ("committed_at", "hedging")

    def __init__(self) -> None:
        self.committed_at = 0.0
        self.hedging: _Hedging | None = None


class _Hedging:
    """The hedges of a batch, and the attempts that failed and may have stored it all the same."""

    __slots__ = ("hedges", "in_flight", "logged", "uncertain")

    def __init__(self) -> None:
        self.hedges = 0
        self.in_flight: dict[int, float] = {}  # when each was sent
        self.logged: set[int] = set()
        self.uncertain = 0


class TopicState(Counters):
    """The bucket, the hedge delay and the numbers of one topic; whoever owns the engines guards it.

    Args:
        name: The topic's full name.
        settings: When to hedge, and the budget.
        hedged: Whether batches are hedged at all; if not, nothing is bought for tokens.
        durations: Takes what batches took, if somebody wants to know.

    Attributes:
        bucket: The topic's token bucket.
        measured_delay: Measures the hedge delay; ``None`` for a fixed one.
        hedge_delay: Seconds; that of the topic's next batch.
        due: What is to be called, soon and with no lock held, because it runs a user's code: log
            lines and recordings.
    """

    __slots__ = (
        "_durations",
        "_futility",
        "_hedged",
        "_name",
        "bucket",
        "due",
        "hedge_delay",
        "measured_delay",
    )

    def __init__(
        self,
        name: str,
        settings: HedgingSettings,
        *,
        hedged: bool = True,
        durations: Durations | None = None,
    ) -> None:
        super().__init__()
        self._name = name
        self._hedged = hedged
        self._durations = durations
        self._futility = Futility(settings)
        self.bucket = TokenBucket(settings.max_tokens, settings.refill_ratio)
        delay = settings.hedge_delay
        self.measured_delay = MeasuredDelay(delay) if isinstance(delay, HedgeDelay) else None
        self.hedge_delay = settings.initial_hedge_delay
        self.due: list[Callable[[], object]] = []

    @property
    def tokens(self) -> float:
        """Tokens left."""
        return self.bucket.tokens if self._hedged else 0.0

    def hedge_sent(self, course: Course, attempt: int, now: float, *, logged: bool) -> None:
        """Count a hedge that is being sent.

        Args:
            course: The batch's.
            attempt: 1, 2, …
            now: Monotonic seconds.
            logged: Whether a line about it is wanted.
        """
        self.hedges_sent += 1
        self._futility.sent()
        if course.hedging is None:
            course.hedging = _Hedging()
        course.hedging.hedges += 1
        course.hedging.in_flight[attempt] = now
        if logged:
            course.hedging.logged.add(attempt)

    def count(
        self,
        course: Course,
        event: Event,
        commands: Sequence[Command],
        original_latency: float | None,
        now: float,
    ) -> None:
        """Count what an engine was told after the commit, and has decided.

        What is sent and cancelled counts when it is.

        Args:
            course: The batch's.
            event: What the engine was told.
            commands: What it answered.
            original_latency: The engine's.
            now: Monotonic seconds.
        """
        if isinstance(event, Failed):
            self._count_failure(course, event, now)
        for command in commands:
            if isinstance(command, Resolve):
                seconds = now - course.committed_at
                bucket = bucket_of(seconds)
                self.result_latency.buckets[bucket] += 1
                if original_latency == seconds:
                    self.original_latency.buckets[bucket] += 1
                elif original_latency is not None:
                    self.original_latency.record(original_latency)
                if self.measured_delay is not None and original_latency is not None:
                    lost = command.attempt != ORIGINAL
                    self.measured_delay.record(original_latency, lost=lost)
                    self.hedge_delay = self.measured_delay.current
                if course.hedging is not None:
                    self._count_losers(course.hedging, course, command.attempt, commands, now)
                if self._durations is not None:
                    outcome = "original" if command.attempt == ORIGINAL else "hedge"
                    self._note_duration(self._durations, outcome, "", seconds)
            elif isinstance(command, Fail):
                self._count_failed(course, command, now)
            elif isinstance(command, Suppressed):
                self.hedges_suppressed += 1
                self._warn(self._futility.suppressed(self.batches, now))

    def _count_losers(
        self,
        hedging: _Hedging,
        course: Course,
        winner: int,
        commands: Sequence[Command],
        now: float,
    ) -> None:
        """Take in what became of the other attempts of a batch that was stored."""
        won = winner != ORIGINAL
        # Of the attempts that the engine cancels, a hedge may not have been sent yet.
        losers = len(hedging.in_flight) - won + (Cancel(ORIGINAL) in commands)
        self.possible_duplicates += losers + hedging.uncertain
        if hedging.hedges:
            self.hedges_won += won
            self._warn(self._futility.decided(hedging.hedges, won=won, now=now))
            for attempt in tuple(hedging.in_flight):
                self._hedge_ended(course, attempt, "won" if attempt == winner else "lost", now)

    def _count_failed(self, course: Course, failure: Fail, now: float) -> None:
        self.batches_failed += 1
        if course.hedging is not None:
            for attempt in tuple(course.hedging.in_flight):
                self._hedge_ended(course, attempt, "cancelled", now)
        if self._durations is not None:
            seconds = now - course.committed_at
            self._note_duration(self._durations, "failed", _kind_of(failure.error), seconds)

    def _count_failure(self, course: Course, event: Failed, now: float) -> None:
        """Take in the end of one attempt; the batch may go on."""
        if _status_of(event.error) in _NOT_CERTAIN:
            if course.hedging is None:
                course.hedging = _Hedging()
            course.hedging.uncertain += 1
        if event.attempt != ORIGINAL:
            self._hedge_ended(course, event.attempt, "failed", now)

    def _hedge_ended(self, course: Course, attempt: int, outcome: HedgeOutcome, now: float) -> None:
        hedging = course.hedging
        sent_at = None if hedging is None else hedging.in_flight.pop(attempt, None)
        if hedging is None or sent_at is None or attempt not in hedging.logged:
            return
        line = HedgeEnded(
            topic=self._name,
            attempt=attempt,
            delay=sent_at - course.committed_at,
            outcome=outcome,
            duration=now - sent_at,
        )
        self.due.append(line.write)

    def _warn(self, reason: str | None) -> None:
        if reason is not None:
            self.due.append(CannotHelp(topic=self._name, reason=reason).write)

    def _note_duration(
        self, durations: Durations, outcome: str, error: str, seconds: float
    ) -> None:
        if durations.add(self._name, outcome, error, seconds):
            self.due.append(durations.record)


def read(topics: Mapping[str, TopicState], topic: str | None = None) -> dict[str, Reading]:
    """Copy the numbers of one topic, if there is such, or of all; for whoever guards them."""
    names = topics if topic is None else [topic] if topic in topics else []
    return {name: Reading(topics[name].copy(), topics[name].tokens) for name in names}


def _status_of(error: BaseException) -> str | None:
    """Return the name of the gRPC status that a Google client's error stands for."""
    name: str | None = getattr(getattr(error, "grpc_status_code", None), "name", None)
    return name


def _kind_of(error: BaseException) -> str:
    """Return one of few words for an error: its status, or its class."""
    return _status_of(error) or type(error).__qualname__
