"""A batch as Google's client treats it: its retry policy, its spans, and what it fails with."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import grpc
from google.api_core import exceptions
from google.cloud.pubsub_v1.publisher.exceptions import PublishError

from hedged_pubsub._core.batching import Batch, Message
from hedged_pubsub._core.connections import Connection, Heard
from hedged_pubsub._core.events import ORIGINAL, Abandoned, Fail, Failed
from hedged_pubsub._google.call_policy import TOO_LARGE, CallPolicy, CallState
from hedged_pubsub._google.intercepted import InterceptedCalls
from hedged_pubsub._google.tracing import BatchTracing
from hedged_pubsub.retry.errors import requested_wait

_NO_ANSWER: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
)
_NO_HEDGES: Final[Mapping[int, Connection[Any]]] = {}


class PublishBatch(Batch):
    """Messages of one topic and one call policy. Once it is committed the driver guards it."""

    __slots__ = (
        "_call_state",
        "_calls",
        "_original",
        "_policy",
        "connection",
        "hedge_connections",
        "intercepted",
        "is_unavailable",
        "last_hedge",
        "request",
        "timer",
        "tracing",
    )

    def __init__(self, topic: str, policy: CallPolicy, *, has_extras: bool) -> None:
        super().__init__(topic, policy.total_timeout, has_extras=has_extras)
        self._policy = policy
        self._call_state: CallState | None = None
        self._original: Any = None
        self._calls: dict[int, Any] | None = None  # the hedges, of which most batches have none
        # Of attempts that interceptors have not handed over yet; the driver's.
        self.intercepted: dict[int, InterceptedCalls] | None = None
        self.request: Any = None  # from the commit until it is decided
        self.tracing: BatchTracing | None = None
        self.connection: Connection[Any] | None = None  # that the original was sent on last
        self.hedge_connections: Mapping[int, Connection[Any]] = _NO_HEDGES
        self.last_hedge: Heard | None = None
        self.is_unavailable = False  # whether its original ended so last
        self.timer: Any = None  # the driver's

    def add_extras(self, message: Message) -> None:
        super().add_extras(message)
        if message.tracing is not None:
            if self.tracing is None:
                self.tracing = BatchTracing(self.topic)
            self.tracing.add(message.tracing)
            message.tracing = None

    # The requests under way are held, because gRPC cancels a call that is dropped.

    def keep_call(self, attempt: int, call: object) -> None:
        if attempt == ORIGINAL:
            self._original = call
        else:
            self._calls = {**(self._calls or {}), attempt: call}

    def is_under_way(self, attempt: int, call: object) -> bool:
        """Tell whether this request is an attempt's, and was neither cancelled nor given up."""
        if attempt == ORIGINAL:
            return self._original is call
        return self._calls is not None and self._calls.get(attempt) is call

    def take_call(self, attempt: int) -> Any:
        """Take out the request of an attempt that has ended, or is to be cancelled."""
        if attempt == ORIGINAL:
            call, self._original = self._original, None
            return call
        return None if self._calls is None else self._calls.pop(attempt, None)

    def cancel_intercepted(self, attempt: int) -> None:
        """Cancel the request of an attempt that an interceptor holds."""
        calls = self.intercepted.get(attempt) if self.intercepted else None
        if calls is not None:
            calls.cancel()

    def drop_calls(self) -> None:
        self._original = self._calls = self.intercepted = None

    @property
    def asks_user(self) -> bool:
        """Whether the retry policy, which ``judge`` asks, may run a user's code."""
        return self._policy.asks_user

    def next_timeout(self) -> float | None:
        """Return the seconds that the next original may take; ``None`` for no limit."""
        policy = self._policy
        return policy.every_timeout if policy.has_constant_timeout else self._call().next_timeout()

    def judge(self, error: BaseException) -> Failed | Abandoned:
        """Ask the retry policy about an error of the original. Runs a user's code."""
        try:
            if self.connection is not None and _is_answer(error):
                self.connection.answered()
            return _with_pushback(self._call().judge(error))
        except BaseException as defect:  # noqa: BLE001 - R8: the predicate or on_error raised
            return Abandoned(defect)

    def hedge_failed(self, attempt: int, error: BaseException) -> Failed:
        """Return what the end of a hedge is to the engine."""
        return _with_pushback(Failed(attempt, error))

    def _call(self) -> CallState:
        if self._call_state is None:
            self._call_state = self._policy.start_call()
        return self._call_state

    def check(self, message_ids: list[str], write: Callable[..., object]) -> list[str]:
        """Return the message ids of an answer; raise PublishError unless each message has one."""
        if len(message_ids) != self.count:
            text = "Only %s of %s messages were published."
            write(logging.ERROR, text, len(message_ids), self.count)
            raise PublishError("Some messages were not successfully published.")
        return message_ids

    def error_of(self, failure: Fail) -> BaseException:
        """Return what the official client would raise for a failed batch."""
        if not failure.retry_timed_out:
            return failure.error
        text = f"Timeout of {self.total_timeout:0.1f}s exceeded"
        error = exceptions.RetryError(text, failure.error)
        error.__cause__ = failure.error
        return error

    def end_spans(
        self, ids: list[str] | None, error: BaseException | None, attempt: int = ORIGINAL
    ) -> None:
        """End the spans. Runs a user's code: that of span processors."""
        if self.tracing is not None and ids is not None:
            self.tracing.succeed(ids, attempt)
        elif self.tracing is not None and error is not None:
            self.tracing.fail(error)


def _is_answer(error: BaseException) -> bool:
    """Tell whether an error can only have come from the server, not from gRPC at this end."""
    return (
        isinstance(error, exceptions.GoogleAPICallError)
        and error.grpc_status_code not in _NO_ANSWER
    )


def _with_pushback(failed: Failed) -> Failed:
    """Add what the service says of when to come again (R15)."""
    error = failed.error
    if not isinstance(error, exceptions.GoogleAPICallError):
        return failed
    exhausted = isinstance(error, exceptions.ResourceExhausted) and TOO_LARGE not in str(error)
    retry_after = requested_wait(error) or None
    if not exhausted and retry_after is None:
        return failed
    return dataclasses.replace(failed, exhausted=exhausted, retry_after=retry_after)
