"""A publish request over HTTP/2, as the driver sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from hedged_pubsub._google.http2 import error_of, parse_answer
from hedged_pubsub._http2.call import Call
from hedged_pubsub._http2.frames import ErrorCode
from hedged_pubsub._http2.grpc import Status
from hedged_pubsub._sync import threads
from hedged_pubsub._sync.http2_link import Link


class Canceller(Protocol):
    """What a call was started on."""

    def cancel(self, call: Http2Call) -> None:
        """End a call, and reset its stream."""


class Http2Call(Call):
    """One publish request: as much of ``grpc.Future`` as the driver needs."""

    __slots__ = (
        "_attempt",
        "_batch",
        "_callback",
        "_channel",
        "_has_ended",
        "fields",
        "link",
        "request",
        "resends",
    )

    def __init__(self, channel: Canceller, fields: bytes, request: bytes, deadline: float) -> None:
        super().__init__(b"", request, deadline)
        self.fields = fields
        self.request = request
        self.link: Link | None = None
        self.resends = 0
        self._channel = channel
        # Whoever comes second, the end or the callback, sees the other one, as in ``direct_call``.
        self._has_ended = False
        self._callback: Callable[..., object] | None = None
        self._batch: Any = None
        self._attempt = 0

    def when_ended(
        self, callback: Callable[[Any, int, Any], object], batch: Any, attempt: int
    ) -> None:
        """Call ``callback(batch, attempt, self)``, one at most, once the call has ended."""
        self._batch, self._attempt = batch, attempt
        if self._has_ended:
            callback(batch, attempt, self)
        else:
            self._callback = callback

    def finish(self) -> None:
        """Tell of the end."""
        if self._callback is None:
            self._has_ended = True
        else:
            callback, batch, self._batch = self._callback, self._batch, None
            callback(batch, self._attempt, self)

    def cancel(self) -> None:
        """Cancel the call if it has not ended."""
        self._callback = self._batch = None
        self._channel.cancel(self)

    def result(self) -> Any:
        """Return the answer of a call that has ended, or raise the official client's error."""
        if self.code == Status.OK:
            try:
                return parse_answer(bytes(self.answer))
            except Exception as error:
                self.code, self.details = Status.INTERNAL, "Exception deserializing response!"
                raise error_of(self) from error
        raise error_of(self)

    def renew(self) -> None:
        """Begin anew, because the server has certainly not processed it."""
        # One that goes away in good order may do so many times while a request waits for its turn.
        goaway = None if self.link is None else self.link.core.goaway
        self.resends += goaway is None or goaway[0] != ErrorCode.NO_ERROR
        self.code, self.details, self.is_unprocessed = None, "", False
        self.message, self.link, self.stream_id = self.request, None, 0
        self.http_status, self.received, self.answer = None, 0, b""


def finish(calls: Iterable[Any]) -> None:
    for call in calls:
        try:
            call.finish()
        except Exception as error:  # noqa: BLE001 - the others end too
            text = "the end of a publish request could not be taken in"
            threads.log_later(logging.ERROR, text, error=error)
