"""What the attempt engine is told and what it asks for, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

ORIGINAL = 0
"""The number of the original attempt; hedges are 1, 2, …"""


# --- Events: what happened. The time of an event is told beside it.


@dataclass(frozen=True, slots=True)
class Committed:
    """The batch is closed and ready to go; its time is t0."""


@dataclass(frozen=True, slots=True)
class Woke:
    """The clock may have reached ``next_wakeup``. An early or late call does no harm.

    Attributes:
        shares_wait: Whether a hedge sent now would wait for what the original may be waiting for,
            too: a connection, or a token (R14).
    """

    shares_wait: bool = False


@dataclass(frozen=True, slots=True)
class LetGo:
    """The original is backing off and is to be sent again now, for others are answered (R16)."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """An attempt was answered with a message id for every message."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt ended in an error.

    Attributes:
        attempt: Its number.
        error: The error, as the caller would see it.
        backoff: Only asked about the original: the seconds to wait before it is sent again, or
            ``None`` if the retry policy does not allow that whatever the time.
        transient: Only asked about the original: whether the retry policy calls the error
            transient. An error that is not fails the batch at once.
        retry_after: Seconds that the service asked to wait, by RetryInfo, or ``None``.
        exhausted: Whether the service said RESOURCE_EXHAUSTED.
        unsent: Only asked about the original: whether it was never sent, because nothing could be
            connected.
        connection_lost: Only asked about the original: whether it may be sent again at once, for
            its connection was lost and another one may be used.
    """

    attempt: int
    error: BaseException
    transient: bool = False
    backoff: float | None = None
    retry_after: float | None = None
    exhausted: bool = False
    unsent: bool = False
    connection_lost: bool = False


@dataclass(frozen=True, slots=True)
class Abandoned:
    """Nobody can or wants to go on: a defect, a closed client. The batch ends with the error."""

    error: BaseException


Event = Committed | Woke | LetGo | Succeeded | Failed | Abandoned


# --- Commands: what the driver is to do, in this order.


@dataclass(frozen=True, slots=True)
class Start:
    """Send the batch once more.

    Attributes:
        attempt: The number of the attempt.
        timeout: Seconds the RPC may take, for a hedge. ``None`` for the original, whose timeout
            is the caller's policy.
    """

    attempt: int
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel this attempt: another one decided the batch."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Suppressed:
    """A hedge was due, and there was no token for it."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A hedge was due, and its token was taken; it is not sent, because we only observe."""


@dataclass(frozen=True, slots=True)
class Resend:
    """Send the original of another batch, which was let go (R16).

    Attributes:
        run: The engine of that batch.
    """

    run: Any


@dataclass(frozen=True, slots=True)
class Resolve:
    """The batch is stored: this attempt's answer is the result."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The batch failed.

    Attributes:
        error: The last error of the original.
        retry_timed_out: Whether the original could have been sent again but for the retry
            timeout; the official client then raises ``RetryError`` from the error.
    """

    error: BaseException
    retry_timed_out: bool = False


Command = Start | Cancel | Suppressed | HeldBack | Resend | Resolve | Fail


# --- What the runs of a publisher add to the commands of an engine: see `runs`.


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Tell the batch that it ``Woke``, at this monotonic second; an earlier wish is void."""

    when: float


@dataclass(frozen=True, slots=True)
class Call:
    """Call this, where a user's code may run: a log line or a recording."""

    function: Callable[[], object]


Order = Command | WakeAt | Call

# What every batch needs, made once.
ORIGINAL_SUCCEEDED: Final = Succeeded(ORIGINAL)
START_ORIGINAL: Final = Start(ORIGINAL)
RESOLVE_ORIGINAL: Final = Resolve(ORIGINAL)
LET_GO: Final = LetGo()
