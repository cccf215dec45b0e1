"""The log lines about hedges: one at DEBUG level for each, a WARNING when hedging cannot help.

A logging handler is a user's code, so a line is made where things happen and written later, where
no lock is held. No line has anything of a message in it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal

LOGGER: Final = logging.getLogger("hedged_pubsub")

HedgeOutcome = Literal["won", "lost", "failed", "cancelled"]
"""Answered first; overtaken, and cancelled; ended in an error; its batch failed before it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeEnded:
    """A hedge that was sent, and what became of it.

    The attributes are those of the log record, too.

    Attributes:
        topic: The topic's full name.
        attempt: Its number: 1, 2, …
        delay: Seconds from the batch's commit until it was sent.
        outcome: What became of it.
        duration: Seconds from then until it ended.
    """

    topic: str
    attempt: int
    delay: float
    outcome: HedgeOutcome
    duration: float

    def write(self) -> None:
        """Write the line."""
        LOGGER.debug(
            "hedge %d on %s, sent after %.3f s, %s after another %.3f s",
            self.attempt,
            self.topic,
            self.delay,
            self.outcome,
            self.duration,
            extra={
                "topic": self.topic,
                "attempt": self.attempt,
                "delay": self.delay,
                "outcome": self.outcome,
                "duration": self.duration,
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CannotHelp:
    """Hedging is configured and does no good.

    Attributes:
        topic: The topic's full name; an attribute of the log record, too.
        reason: What happens, and what to do about it.
    """

    topic: str
    reason: str

    def write(self) -> None:
        """Write the line."""
        LOGGER.warning(
            "hedging cannot help on %s: %s", self.topic, self.reason, extra={"topic": self.topic}
        )


def is_wanted() -> bool:
    """Tell whether lines about single hedges are written; asked only when one is sent."""
    return LOGGER.isEnabledFor(logging.DEBUG)
