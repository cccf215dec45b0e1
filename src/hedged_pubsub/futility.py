"""Finds out when hedging is configured but cannot help, so that somebody is told.

Pure: it is told what happens to the hedges of one topic and when, and answers with what to say. It
is asked only when a hedge is sent, suppressed or decided, never for a batch that is answered in
time.
"""

from __future__ import annotations

import math
from typing import Final

from hedged_pubsub.settings import HedgingSettings

MANY_BATCHES: Final = 100
"""Batches within which a topic should have had a token. The default refill ratio earns ten by
then; one that has earned none is too small, or nothing succeeds."""

LONG_DROUGHT: Final = 60.0
"""Seconds without a token, while hedges were due all along, after which the bucket is too small
for what the service does. A short outage is what the bucket is meant to sit out."""

MANY_LOSERS: Final = 20
"""Hedges in a row that lost. Where one hedge in five wins, that many lose once in a hundred."""

QUIET: Final = 600.0
"""Seconds between two warnings about a topic: enough to be seen, and not to fill the log."""


class Futility:
    """Watches the hedges of one topic.

    Args:
        settings: When to hedge, and the budget; named in the warnings.
    """

    __slots__ = ("_drought_since", "_ever_sent", "_losers", "_quiet_until", "_settings", "_thirst")

    def __init__(self, settings: HedgingSettings) -> None:
        self._settings = settings
        self._ever_sent = False
        self._losers = 0
        self._drought_since = -math.inf
        self._thirst = -math.inf  # when a hedge was suppressed last
        self._quiet_until = -math.inf

    def sent(self) -> None:
        """A hedge was sent, so there was a token."""
        self._ever_sent = True
        self._thirst = -math.inf

    def decided(self, hedges: int, *, won: bool, now: float) -> str | None:
        """Take in a batch that was stored.

        Args:
            hedges: How many hedges were sent for it.
            won: Whether one of them was answered first.
            now: Monotonic seconds.

        Returns:
            What to warn of, or ``None``.
        """
        self._losers = 0 if won else self._losers + hedges
        if self._losers < MANY_LOSERS:
            return None
        return self._say(
            f"the last {self._losers} hedges all lost. Raise hedge_delay "
            f"({self._settings.hedge_delay}) above what most requests take, or turn hedging off "
            "where all of them are equally slow",
            now,
        )

    def suppressed(self, batches: int, now: float) -> str | None:
        """Take in a hedge that was due when there was no token.

        Args:
            batches: How many batches the topic has had.
            now: Monotonic seconds.

        Returns:
            What to warn of, or ``None``.
        """
        if now - self._thirst > LONG_DROUGHT:
            self._drought_since = now  # the first, or the first after a while without need
        self._thirst = now
        if not self._ever_sent and batches >= MANY_BATCHES:
            return self._say(
                f"{batches} batches have not earned one token. A success earns refill_ratio "
                f"({self._settings.refill_ratio}) of it: raise that, or find out why so few "
                "requests succeed",
                now,
            )
        drought = now - self._drought_since
        if drought >= LONG_DROUGHT:
            return self._say(
                f"hedges have been due for {drought:.0f} s and there was no token for any of "
                "them. More requests are slower than hedge_delay "
                f"({self._settings.hedge_delay}) than refill_ratio "
                f"({self._settings.refill_ratio}) pays for: raise either, or wait for the end of "
                "the outage",
                now,
            )
        return None

    def _say(self, what: str, now: float) -> str | None:
        if now < self._quiet_until:
            return None
        self._quiet_until = now + QUIET
        self._losers = 0
        return what
