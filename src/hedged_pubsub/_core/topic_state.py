"""What a publisher keeps of each topic: its bucket, its hedge delay, and what happened on it.

Whoever owns the runs guards this. What would run a user's code, a log line or a recording, is put
into ``calls``, to be called once no lock is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from hedged_pubsub._core.events import ORIGINAL, Fail, Failed
from hedged_pubsub._core.hedge_budget import HedgeBudget
from hedged_pubsub._core.hedge_delay import HedgeDelay, MeasuredDelay
from hedged_pubsub._core.hedge_log import CannotHelp, HedgeEnded, HedgeOutcome, NotConnected
from hedged_pubsub._core.hedge_warnings import HedgeWarnings
from hedged_pubsub._core.histogram import bucket_of
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import Counters, HedgingStats, Latencies, counts_of, total
from hedged_pubsub._core.token_bucket import TokenBucket
from hedged_pubsub._core.waiting import Waiting

if TYPE_CHECKING:
    from hedged_pubsub._core.runs import Run

# What a request can end with although the service stored its messages.
_NOT_CERTAIN: Final = frozenset(
    {"ABORTED", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"}
)


class Durations(Protocol):
    """Takes what batches took to where it is exported."""

    def add(self, topic: str, outcome: str, error: str, seconds: float) -> bool:
        """Note the seconds from a batch's commit to its outcome; return whether to ``record``.

        Nobody is called. The outcome is ``"original"`` or ``"hedge"``, whichever was answered
        first, or ``"failed"``, with the kind of error.
        """

    def record(self) -> None:
        """Record what was noted. Runs a user's code."""


class Recording(Protocol):
    """Takes what single attempts took to where it is written."""

    def add(
        self, sent_at: float, latency: float, topic: str, attempt: int, outcome: str, now: float
    ) -> bool:
        """Note an attempt that ends now; return whether to ``write``. Nobody is called.

        The outcome is ``"stored"``, ``"late"`` (stored, but the answer waited for us: R13),
        ``"censored"`` (cut off, so that it would have taken longer), or the kind of error.
        """

    def write(self) -> None:
        """Write what was noted. Takes its time."""


class TopicState(Counters):
    """The bucket, the hedge delay and the numbers of one topic.

    There is one of every topic, for ever, so it is small: what takes more, the histograms and the
    window of a measured delay, it has while it is in use. See ``recent_topics``.

    Attributes:
        budget: Decides about the topic's hedges, and has its token bucket.
        waiting: The topic's originals that are backing off.
        hedge_delay: Seconds; that of the topic's next batch.
        latencies: Where the latencies of its batches are counted.
        calls: What is to be called soon, with no lock held; that of all topics.
        recording: Where to note what attempts take; ``None`` where that is not recorded.
    """

    __slots__ = (
        "_durations",
        "_hedged",
        "_measured_delay",
        "_name",
        "_settings",
        "_warnings",
        "budget",
        "calls",
        "hedge_delay",
        "latencies",
        "recording",
        "waiting",
    )

    def __init__(
        self,
        name: str,
        settings: HedgingSettings,
        *,
        hedged: bool,
        durations: Durations | None,
        latencies: Latencies,
        calls: list[Callable[[], object]],
    ) -> None:
        super().__init__()
        self._name = name
        self._settings = settings
        self._hedged = hedged
        self._durations = durations
        self._warnings: HedgeWarnings | None = None  # most topics never need any
        self.budget = HedgeBudget(settings)
        self.waiting = Waiting(enabled=hedged and not settings.observe_only)
        self._measured_delay: MeasuredDelay | None = None
        self.hedge_delay = settings.initial_hedge_delay
        self.latencies = latencies
        self.calls = calls
        self.recording: Recording | None = None

    def begin_use(self) -> None:
        """Have histograms of its own, and measure the hedge delay, beginning with the last one."""
        self.latencies = Latencies()
        delay = self._settings.hedge_delay
        if isinstance(delay, HedgeDelay):
            self._measured_delay = MeasuredDelay(delay, self.hedge_delay)

    def end_use(self, latencies: Latencies) -> None:
        """Count latencies there, and go on with the last hedge delay."""
        self.latencies = latencies
        self._measured_delay = None

    @property
    def tokens(self) -> float:
        """Tokens left."""
        return self.bucket.tokens if self._hedged else 0.0

    @property
    def bucket(self) -> TokenBucket:
        """The topic's token bucket."""
        return self.budget.bucket

    @property
    def warnings(self) -> HedgeWarnings:
        """What is known of hedges that cannot help; made when it is first asked for."""
        if self._warnings is None:
            self._warnings = HedgeWarnings(self._settings)
        return self._warnings

    def hedge_sent(self) -> None:
        """Count a hedge that is being sent."""
        self.hedges_sent += 1
        self.warnings.sent()

    def hedge_suppressed(self, now: float) -> None:
        """Count a hedge for which there was no token."""
        self.hedges_due += 1
        self.hedges_suppressed += 1
        self._warn(self.warnings.suppressed(self.batches, now))

    def attempt_failed(self, run: Run, event: Failed, now: float) -> None:
        """Count the end of one attempt; the batch may go on."""
        if _status_of(event.error) in _NOT_CERTAIN and not event.unsent:
            run.uncertain += 1
        if event.unsent:
            seconds = self.warnings.unsent(self.budget.stored, now)
            if seconds is not None:
                line = NotConnected(topic=self._name, seconds=seconds, error=event.error)
                self.calls.append(line.write)
        if self.recording is not None:
            self._record(self.recording, run, event.attempt, _kind_of(event.error), now)
        if event.attempt != ORIGINAL:
            self._hedge_ended(run, event.attempt, "failed", now)

    def batch_stored(self, run: Run, now: float) -> None:
        """Count a batch that a request of it was answered for."""
        seconds, original_latency = now - run.committed_at, run.original_latency
        bucket = bucket_of(seconds)
        self.latencies.result.count(bucket)
        if original_latency == seconds:
            self.latencies.original.count(bucket)
        elif original_latency is not None:
            self.latencies.original.record(original_latency)
        won = run.winner != ORIGINAL
        if (
            self._measured_delay is not None
            and original_latency is not None
            and not self.budget.has_waited(run.original_sent_at, now)
        ):
            self._measured_delay.record(original_latency, lost=won)
            self.hedge_delay = self._measured_delay.current
        if self.recording is not None:
            late = self.budget.has_waited(run.original_sent_at, now)
            outcome = "late" if late else "stored"
            self._record(self.recording, run, run.winner or ORIGINAL, outcome, now)
            self._record_cut_off(self.recording, run, now)
        # A loser that was not sent yet is no duplicate.
        self.possible_duplicates += run.uncertain + (ORIGINAL in run.losers)
        if run.hedges_sent:
            self.possible_duplicates += len(run.sent_at) - won
            self.hedges_won += won
            if run.committed_at >= self.budget.late_at:
                self._warn(self.warnings.decided(run.hedges_sent, won=won, now=now))
            for attempt in tuple(run.sent_at):
                self._hedge_ended(run, attempt, "won" if attempt == run.winner else "lost", now)
        if self._durations is not None:
            self._note_duration(self._durations, "hedge" if won else "original", "", seconds)

    def batch_failed(self, run: Run, failure: Fail, now: float) -> None:
        """Count a batch that was given up."""
        self.batches_failed += 1
        if self.recording is not None:
            self._record_cut_off(self.recording, run, now)
        for attempt in tuple(run.sent_at):
            self._hedge_ended(run, attempt, "cancelled", now)
        if self._durations is not None:
            seconds = now - run.committed_at
            self._note_duration(self._durations, "failed", _kind_of(failure.error), seconds)

    def _hedge_ended(self, run: Run, attempt: int, outcome: HedgeOutcome, now: float) -> None:
        sent_at = run.sent_at.pop(attempt, None)
        if sent_at is not None and run.is_logged:
            line = HedgeEnded(
                topic=self._name,
                attempt=attempt,
                delay=sent_at - run.committed_at,
                outcome=outcome,
                duration=now - sent_at,
            )
            self.calls.append(line.write)

    def _record_cut_off(self, recording: Recording, run: Run, now: float) -> None:
        for attempt in run.losers:
            self._record(recording, run, attempt, "censored", now)

    def _record(
        self, recording: Recording, run: Run, attempt: int, outcome: str, now: float
    ) -> None:
        sent_at = run.sent_at.get(attempt) if attempt else run.original_sent_at
        if sent_at is not None and recording.add(  # a hedge that was not sent yet has no row
            sent_at, now - sent_at, self._name, attempt, outcome, now
        ):
            self.calls.append(recording.write)

    def _warn(self, reason: str | None) -> None:
        if reason is not None:
            self.calls.append(CannotHelp(topic=self._name, reason=reason).write)

    def _note_duration(
        self, durations: Durations, outcome: str, error: str, seconds: float
    ) -> None:
        if durations.add(self._name, outcome, error, seconds):
            self.calls.append(durations.record)


def snapshot(
    topics: Mapping[str, TopicState], others: Latencies, topic: str | None = None
) -> HedgingStats:
    """Return the numbers of one topic, all zero for an unknown one, or of all of them.

    Raise ValueError for an unknown one without its project: asked for so, it is always unknown.

    It needs no lock: to a counter it makes no difference which batch it just misses. ``others`` are
    the latencies of topics that have no histograms of their own.
    """
    if topic is not None:
        state = topics.get(topic)
        if state is None and "/" not in topic:
            raise ValueError(
                f"topic must be a full name, such as projects/my-project/topics/{topic}; "
                f"got {topic!r}: use topic_path()"
            )
        if state is None:
            return HedgingStats()
        latencies = state.latencies
        return state.freeze(state.tokens, None if latencies is others else latencies)
    # Copied first: what is moved there meanwhile is not counted twice.
    all_latencies = others.copy()
    by_topic: dict[str, HedgingStats] = {}
    # Of a hundred thousand topics, most that are not in use have the same few small numbers.
    known: dict[tuple[float, ...], HedgingStats] = {}
    for name, state in topics.items():
        latencies = state.latencies
        if latencies is others:
            numbers = (*counts_of(state), state.tokens)
            stats = known.get(numbers)
            if stats is None:
                stats = known[numbers] = state.freeze(numbers[-1], None)
        else:
            own = latencies.copy()
            all_latencies.add(own)
            stats = state.freeze(state.tokens, own)
        by_topic[name] = stats
    return total(by_topic, all_latencies)


def _status_of(error: BaseException) -> str | None:
    """Return the name of the gRPC status that a Google client's error stands for."""
    name: str | None = getattr(getattr(error, "grpc_status_code", None), "name", None)
    return name


def _kind_of(error: BaseException) -> str:
    """Return one of few words for an error: its status, or its class."""
    return _status_of(error) or type(error).__qualname__
