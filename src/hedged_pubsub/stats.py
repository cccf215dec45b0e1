"""What hedging did, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hedged_pubsub.events import ORIGINAL, Command, Resolve, Suppressed
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.token_bucket import TokenBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgingStats:
    """A snapshot of what a publisher did since it was made; it does not change afterwards.

    Attributes:
        batches: Batches committed.
        attempts: Publish requests sent: originals, their retries, and hedges.
        hedges_sent: Hedges among them.
        hedges_won: Batches decided by a hedge's answer.
        hedges_suppressed: Times a hedge was due and no token was left for it.
        attempts_cancelled: Requests cancelled because another one had decided the batch. Neither
            successes nor errors; each may have stored its messages a second time.
        tokens: Tokens left, in the topic's bucket or, in total, in all of them.
    """

    batches: int = 0
    attempts: int = 0
    hedges_sent: int = 0
    hedges_won: int = 0
    hedges_suppressed: int = 0
    attempts_cancelled: int = 0
    tokens: float = 0.0


class TopicState:
    """The bucket and the counters of one topic; whoever owns the engines guards it.

    Attributes:
        bucket: The topic's token bucket.
    """

    __slots__ = (
        "attempts",
        "attempts_cancelled",
        "batches",
        "bucket",
        "hedges_sent",
        "hedges_suppressed",
        "hedges_won",
    )

    def __init__(self, settings: HedgingSettings) -> None:
        self.bucket = TokenBucket(settings.max_tokens, settings.refill_ratio)
        self.batches = 0
        self.attempts = 0
        self.hedges_sent = 0
        self.hedges_won = 0
        self.hedges_suppressed = 0
        self.attempts_cancelled = 0

    def count(self, commands: Iterable[Command]) -> None:
        """Count what an engine has decided; what is sent and cancelled counts when it is."""
        for command in commands:
            if isinstance(command, Suppressed):
                self.hedges_suppressed += 1
            elif isinstance(command, Resolve) and command.attempt != ORIGINAL:
                self.hedges_won += 1


def snapshot(topics: Iterable[TopicState]) -> HedgingStats:
    """Add up topics into one snapshot."""
    states = tuple(topics)
    return HedgingStats(
        batches=sum(state.batches for state in states),
        attempts=sum(state.attempts for state in states),
        hedges_sent=sum(state.hedges_sent for state in states),
        hedges_won=sum(state.hedges_won for state in states),
        hedges_suppressed=sum(state.hedges_suppressed for state in states),
        attempts_cancelled=sum(state.attempts_cancelled for state in states),
        tokens=sum(state.bucket.tokens for state in states),
    )
