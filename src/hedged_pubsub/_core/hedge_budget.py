"""Whether a hedge may be sent when the hedge timer is due: what all batches of a topic share.

The order of the questions is that of rule R3; see ``engine``.
"""

from __future__ import annotations

import enum
import math
from typing import Final

from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.token_bucket import TokenBucket

MAX_LATENESS: Final = 0.1
"""Seconds that a hedge timer may be late (R13). A busy interpreter or event loop is a few tens of
milliseconds late; what is later than the shortest hedge delay was stopped."""

AFTER_LATENESS: Final = 0.05
"""Seconds until a timer that was late is due once more: time to take in what was answered."""

MAX_PUSHBACK: Final = 60.0
"""Seconds that the service can suspend hedging for (R15). One mistaken answer must not turn it off
for the day."""


class Decision(enum.Enum):
    """What to do about a hedge that is due."""

    NOTHING = "no token, next delay"
    END = "hedging of this batch ends"
    SUPPRESS = "no token was left"
    HOLD_BACK = "a token was taken, but we only observe"
    SEND = "a token was taken"


class HedgeBudget:
    """The token bucket of one topic, and what else decides whether it is spent.

    Attributes:
        bucket: The topic's token bucket.
        observe_only: Whether no hedge is sent.
        late_at: When this process was last found to be late.
        stored: How many batches were stored.
    """

    __slots__ = (
        "_late_until",
        "_max_hedges",
        "_next_probe_at",
        "_pushed_back_until",
        "bucket",
        "late_at",
        "observe_only",
        "stored",
    )

    def __init__(self, settings: HedgingSettings) -> None:
        self.bucket = TokenBucket(
            settings.max_tokens, settings.refill_ratio, settings.initial_tokens
        )
        self._max_hedges = math.inf if settings.max_hedges is None else settings.max_hedges
        self.observe_only = settings.observe_only
        self.late_at = self._late_until = self._next_probe_at = self._pushed_back_until = -math.inf
        self.stored = 0

    def batch_stored(self) -> None:
        """Refill the bucket for a batch that was stored."""
        self.stored += 1
        self.bucket.refill()

    def was_late(self, due: float, now: float) -> None:
        """Take note that what was due then happens only now, because this process was late."""
        self.late_at = now
        self._late_until = now + (now - due)

    def has_waited(self, sent_at: float, now: float) -> bool:
        """Tell whether an answer that is taken in now may have waited for us (R13).

        What came in during a pause is taken in within a time that is as long.
        """
        return sent_at < self.late_at and now <= self._late_until

    def push_back(self, retry_after: float | None, hedge_delay: float, now: float) -> None:
        """Suspend hedging after RetryInfo, or RESOURCE_EXHAUSTED without it (R15)."""
        seconds = hedge_delay if retry_after is None else min(retry_after, MAX_PUSHBACK)
        self._pushed_back_until = max(self._pushed_back_until, now + seconds)

    def is_pushed_back(self, now: float) -> bool:
        """Tell whether hedging is suspended."""
        return now < self._pushed_back_until

    def may_probe(self, now: float) -> bool:
        """Tell whether a hedge may be sent as a probe: one a topic and hedge delay."""
        return now >= self._next_probe_at

    def decide(
        self, now: float, *, hedges: int, shares_wait: bool, probes: float | None
    ) -> Decision:
        """Decide about a hedge that is due, and take its token.

        Args:
            now: The monotonic second.
            hedges: How many hedges the batch has had.
            shares_wait: Whether it would wait for what the original waits for.
            probes: For a batch whose original is backing off: seconds in which the topic may have
                one such hedge. ``None`` for others.
        """
        if hedges >= self._max_hedges:
            return Decision.END
        if shares_wait or self.is_pushed_back(now):
            return Decision.NOTHING
        if probes is not None:
            if not self.may_probe(now):
                return Decision.NOTHING
            self._next_probe_at = now + probes
        if not self.bucket.take():
            return Decision.SUPPRESS
        return Decision.HOLD_BACK if self.observe_only else Decision.SEND
