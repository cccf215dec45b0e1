"""What the server remembers: every Publish attempt and every stored message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["pending", "answered", "failed", "cancelled", "dropped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One Publish call as the server saw it.

    Attributes:
        number: 1 for the first call since the script was set; what a fault's ``calls`` refers to.
        topic: path of the topic.
        message_count: how many messages the request carried.
        arrival: when the server got the request; seconds on the server's monotonic clock.
        peer: the client's end of the connection, such as ``"ipv4:127.0.0.1:41234"``. Two attempts
            came on one connection if their peers are equal.
        metadata: the request's metadata, in order.
        attempt_number: 0 for an original, 1 and up for hedges, from the request's metadata; None
            if the client did not send it.
        publish_start_time: when the batch was first published, from the same metadata; seconds
            since the epoch. None if the client did not send it.
        timeout: seconds that were left until the client's deadline at arrival, within some tenths
            of a percent of what the client gave (gRPC rounds it); None without a deadline.
        fault: class name of the fault that applied, such as ``"Stall"``; None without one.
        outcome: ``"pending"`` as long as the server holds the call; ``"answered"`` with message
            ids; ``"failed"`` with a status code; ``"cancelled"`` if the client cancelled, its
            deadline passed, or its connection broke before the answer; ``"dropped"`` if a
            `DropReply` or `ResetConnection` fault keeps the answer back for good.
        code: name of the status code sent; None unless ``outcome`` is ``"failed"``.
        ended: when the call ended; seconds on the server's monotonic clock. None as long as it is
            open.
    """

    number: int
    topic: str
    message_count: int
    arrival: float
    peer: str
    metadata: tuple[tuple[str, str | bytes], ...]
    attempt_number: int | None
    publish_start_time: float | None
    timeout: float | None
    fault: str | None
    outcome: Outcome
    code: str | None
    ended: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One stored message. A message that was published twice is stored twice, with two ids.

    Attributes:
        message_id: the id the server gave it.
        topic: path of the topic.
        data: the body.
        attributes: the attributes as pairs, sorted by key; ``dict(message.attributes)`` for a dict.
        ordering_key: the ordering key; empty without one.
        publish_time: when it was stored; seconds since the epoch.
        attempt_number: that of the attempt that brought it; see `Attempt`.
        call: number of the call that brought it; see `Attempt.number`.
    """

    message_id: str
    topic: str
    data: bytes
    attributes: tuple[tuple[str, str], ...]
    ordering_key: str
    publish_time: float
    attempt_number: int | None
    call: int
