"""The log lines about hedges: one at DEBUG level for each, a WARNING when hedging cannot help.

A logging handler is a user's code, so a line is made where things happen and written later, where
no lock is held. No line has anything of a message in it.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Literal

from hedged_pubsub._core import log

HedgeOutcome = Literal["won", "lost", "failed", "cancelled"]
"""Answered first; another attempt was; ended in an error; its batch failed before it ended."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HedgeEnded:
    """A hedge that was sent, and what became of it: the attributes of the log record.

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
        log.write(
            logging.DEBUG,
            "hedge %d on %s, sent after %.3f s, %s after another %.3f s",
            self.attempt,
            log.printable(self.topic),
            self.delay,
            self.outcome,
            self.duration,
            extra=dataclasses.asdict(self),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CannotHelp:
    """Hedging is configured and does no good: what happens, and what to do about it."""

    topic: str
    reason: str

    def write(self) -> None:
        """Write the line; the topic is an attribute of the log record, too."""
        log.write(
            logging.WARNING,
            "hedging cannot help on %s: %s",
            log.printable(self.topic),
            self.reason,
            extra={"topic": self.topic},
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NotConnected:
    """Nothing can be connected: for how many seconds, and what gRPC says."""

    topic: str
    seconds: float
    error: BaseException

    def write(self) -> None:
        """Write the line; the topic is an attribute of the log record, too."""
        log.write(
            logging.WARNING,
            "nothing can be connected for %.0f s; messages on %s wait: %s",
            self.seconds,
            log.printable(self.topic),
            self.error,
            extra={"topic": self.topic},
        )


def is_wanted() -> bool:
    """Tell whether lines about single hedges are written; asked only when one is sent."""
    return log.LOGGER.isEnabledFor(logging.DEBUG)
