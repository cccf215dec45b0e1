"""Finds out when hedging is configured but cannot help, so that somebody is told.

It is asked only when a hedge is sent, suppressed or decided, never for a batch that is answered in
time. No clock, no log: it is told the time, and returns what to warn of.
"""

from __future__ import annotations

import math
from typing import Final

from hedged_pubsub._core.settings import HedgingSettings

MANY_BATCHES: Final = 100
"""Batches within which a topic should have had a token. The default refill ratio earns ten by
then; one that has earned none is too small, or nothing succeeds."""

LONG_WITHOUT_TOKEN: Final = 60.0
"""Seconds without a token, while hedges were due all along, after which the bucket is too small
for what the service does. A short outage is what the bucket is meant to outlast."""

MANY_LOSERS: Final = 20
"""Hedges in a row that lost. Where one hedge in five wins, that many lose once in a hundred."""

LONG_UNCONNECTED: Final = 5.0
"""Seconds without a connection after which somebody should know. A restart takes less."""

QUIET: Final = 600.0
"""Seconds between two warnings about a topic: enough to be seen, and not to fill the log."""


class HedgeWarnings:
    """Watches the hedges of one topic. Times are monotonic seconds."""

    __slots__ = (
        "_ever_sent",
        "_last_suppressed",
        "_losers",
        "_quiet_until",
        "_settings",
        "_stored",
        "_unsent_quiet_until",
        "_unsent_since",
        "_without_token_since",
    )

    def __init__(self, settings: HedgingSettings) -> None:
        self._settings = settings
        self._ever_sent = False
        self._losers = self._stored = 0
        self._unsent_since = math.inf
        self._unsent_quiet_until = -math.inf
        self._without_token_since = self._last_suppressed = self._quiet_until = -math.inf

    def sent(self) -> None:
        """Take in that a hedge was sent, so there was a token."""
        self._ever_sent = True
        self._last_suppressed = -math.inf

    def decided(self, hedges: int, *, won: bool, now: float) -> str | None:
        """Take in that a batch with so many hedges was stored; return what to warn of, if any."""
        self._losers = 0 if won else self._losers + hedges
        if self._losers < MANY_LOSERS:
            return None
        return self._warn(
            f"the last {self._losers} hedges all lost. Raise hedge_delay "
            f"({self._settings.hedge_delay}) above what most requests take, or turn hedging off "
            "where all of them are equally slow",
            now,
        )

    def suppressed(self, batches: int, now: float) -> str | None:
        """Take in that a hedge was due and there was no token, after so many batches; likewise."""
        if now - self._last_suppressed > LONG_WITHOUT_TOKEN:
            self._without_token_since = now  # the first, or none was due for long
        self._last_suppressed = now
        seconds = now - self._without_token_since
        ratio = self._settings.refill_ratio
        if not self._ever_sent and batches >= MANY_BATCHES:
            return self._warn(
                f"{batches} batches have not earned one token. A success earns refill_ratio "
                f"({ratio}) of it: raise that, or find out why so few requests succeed",
                now,
            )
        if seconds < LONG_WITHOUT_TOKEN:
            return None
        return self._warn(
            f"hedges have been due for {seconds:.0f} s and there was no token for any of them. "
            f"More requests are slower than hedge_delay ({self._settings.hedge_delay}) than "
            f"refill_ratio ({ratio}) pays for: raise either, or wait for the end of the outage",
            now,
        )

    def unsent(self, stored: int, now: float) -> float | None:
        """Take in that nothing could be connected, after so many batches were stored.

        Return for how many seconds that has been so, if that is to be told.
        """
        if self._unsent_since == math.inf or stored != self._stored:
            self._unsent_since, self._stored = now, stored
        seconds = now - self._unsent_since
        if seconds < LONG_UNCONNECTED or now < self._unsent_quiet_until:
            return None
        self._unsent_quiet_until = now + QUIET
        return seconds

    def _warn(self, reason: str, now: float) -> str | None:
        if now < self._quiet_until:
            return None
        self._quiet_until = now + QUIET
        self._losers = 0
        return reason
