"""What hedging did, in numbers.

An attempt that loses is neither a success nor an error: what is counted as such, and what took how
long, are batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final

from hedged_pubsub._core.histogram import NO_SAMPLES, LatencyHistogram, LatencyPercentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgingStats:
    """A snapshot of what a publisher did since it was made; it does not change afterwards.

    Attributes:
        batches: Batches committed.
        batches_failed: Batches that were given up; their futures have an error.
        attempts: Publish requests sent: originals, their retries, and hedges.
        attempts_cancelled: Requests cancelled because another one had decided the batch. Neither
            successes nor errors.
        hedges_due: Hedges that were wanted: those sent, those suppressed, and those that
            ``observe_only`` held back. Not those that a wait for a connection or a token, or the
            service's request for a pause, made pointless.
        hedges_sent: Hedges among the attempts.
        hedges_won: Batches decided by a hedge's answer.
        hedges_suppressed: Times a hedge was due and no token was left for it.
        possible_duplicates: Attempts that may have stored a batch once more. These are, of each
            batch that was stored, all attempts but the one that was answered first, except those
            that are known to have stored nothing because the service refused them. A cancelled
            attempt is among them, for a cancellation does not tell how far the service had come;
            so is a retried one that timed out. Never fewer than there are duplicates; the service
            alone knows how many there are.
        tokens: Tokens left, in the topic's bucket or, in total, in all of them.
        original_latency: Seconds from sending the original, or sending it again, to its answer.
            One that was cancelled because a hedge was answered first counts with the time until
            then: beyond the hedge delay these percentiles are the least that requests would have
            taken without hedging.
        result_latency: Seconds from the commit of a batch to the answer that decided it, for the
            batches that were stored. The time that a batch waits for more messages is not in it.
        by_topic: The same for each topic by its full name, in a snapshot of all of them. The
            latencies are only there for the topics that were used last, a thousand at most; the
            total has those of all. Not part of a comparison.
    """

    batches: int = 0
    batches_failed: int = 0
    attempts: int = 0
    attempts_cancelled: int = 0
    hedges_due: int = 0
    hedges_sent: int = 0
    hedges_won: int = 0
    hedges_suppressed: int = 0
    possible_duplicates: int = 0
    tokens: float = 0.0
    original_latency: LatencyPercentiles = NO_SAMPLES
    result_latency: LatencyPercentiles = NO_SAMPLES
    by_topic: Mapping[str, HedgingStats] = field(default_factory=dict, repr=False, compare=False)


COUNTS: Final = tuple(one.name for one in fields(HedgingStats) if one.type == "int")
"""The numbers that only grow: attributes of a snapshot, and of what is counted in."""


counts_of: Final = attrgetter(*COUNTS)
"""Returns these numbers, of whatever has them."""


class Latencies:
    """The histograms of what requests and batches took: of one topic, or of several."""

    __slots__ = ("original", "result")

    def __init__(self) -> None:
        self.original = LatencyHistogram()
        self.result = LatencyHistogram()

    def add(self, other: Latencies) -> None:
        """Count what others have counted, too."""
        self.original.add(other.original)
        self.result.add(other.result)

    def copy(self) -> Latencies:
        """Return a copy, which does not change any more."""
        copy = Latencies()
        copy.original, copy.result = self.original.copy(), self.result.copy()
        return copy


class Counters:
    """The numbers of one topic that only grow."""

    __slots__ = COUNTS

    def __init__(self) -> None:
        self.batches = 0
        self.batches_failed = 0
        self.attempts = 0
        self.attempts_cancelled = 0
        self.hedges_due = 0
        self.hedges_sent = 0
        self.hedges_won = 0
        self.hedges_suppressed = 0
        self.possible_duplicates = 0

    def freeze(self, tokens: float, latencies: Latencies | None) -> HedgingStats:
        """Return the numbers as users get them."""
        counts: Any = {name: getattr(self, name) for name in COUNTS}
        if latencies is None:
            return HedgingStats(**counts, tokens=tokens)
        return HedgingStats(
            **counts,
            tokens=tokens,
            original_latency=latencies.original.percentiles(),
            result_latency=latencies.result.percentiles(),
        )


def total(by_topic: dict[str, HedgingStats], latencies: Latencies) -> HedgingStats:
    """Return the numbers of topics together."""
    counts: Any = {name: sum(map(attrgetter(name), by_topic.values())) for name in COUNTS}
    return HedgingStats(
        **counts,
        tokens=sum(stats.tokens for stats in by_topic.values()),
        original_latency=latencies.original.percentiles(),
        result_latency=latencies.result.percentiles(),
        by_topic=by_topic,
    )
