"""A batch: messages that are sent together, from the first one's arrival to the outcome."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from google.api_core import exceptions
from google.cloud.pubsub_v1.publisher.exceptions import PublishError

from hedged_pubsub._sync.driver import Call
from hedged_pubsub._sync.future import PublishFuture, invoke_callbacks, orphan, settle
from hedged_pubsub._sync.rpc import PublishRpc, message_ids
from hedged_pubsub._sync.workers import Workers
from hedged_pubsub._tracing import BatchTracing
from hedged_pubsub._wire import varint
from hedged_pubsub.call_policy import CallPolicy, CallState
from hedged_pubsub.events import ORIGINAL, Fail, Failed

_LOGGER = logging.getLogger(__name__)

# PublishRequest { string topic = 1; repeated PubsubMessage messages = 2; }
_TOPIC_TAG: Final = b"\x0a"
_MESSAGE_TAG: Final = b"\x12"


class BatchOwner(Protocol):
    """Whom a batch tells about its end."""

    def return_credit(self, batch: Batch) -> None:
        """The batch is decided; its futures are not resolved yet."""

    def forget(self, batch: Batch) -> None:
        """All futures of the batch have their outcome."""


class Batch:
    """Messages of one topic and one call policy; what the driver needs of them.

    While it is open the batch lock guards it; once committed it does not change.

    Args:
        topic: The topic's full name.
        policy: The retry and the timeout of its messages.
        rpc: How it is sent.
        workers: Run what is a user's code: done-callbacks, and exporters of spans.
        owner: Told about its end.

    Attributes:
        size: What the request takes on the wire, in bytes.
        futures: Those of the messages.
        credit: The sizes for which flow control lent credit; empty where it does not count.
        tracing: Its spans, or ``None`` with tracing off.
    """

    __slots__ = (
        "_call_state",
        "_condition",
        "_owner",
        "_parts",
        "_policy",
        "_publish_start_time",
        "_request",
        "_rpc",
        "_workers",
        "credit",
        "futures",
        "size",
        "topic",
        "tracing",
    )

    def __init__(
        self,
        topic: str,
        policy: CallPolicy,
        rpc: PublishRpc,
        workers: Workers,
        owner: BatchOwner,
    ) -> None:
        self.topic = topic
        self._policy = policy
        self._rpc = rpc
        self._workers = workers
        self._owner = owner
        # The request on the wire, piece by piece. Joined, it is what protobuf would make of it:
        # each message is serialized, and measured, once.
        self._parts: list[bytes] = [topic_field(topic)]
        self.size = len(self._parts[0])
        self.futures: list[PublishFuture] = []
        self.credit: list[int] = []
        self.tracing: BatchTracing | None = None
        # Reentrant, because ``concurrent.futures.wait`` acquires it once a future.
        self._condition = threading.Condition()
        self._publish_start_time = math.inf
        self._call_state: CallState | None = None
        self._request: Any = None

    def add(self, prefix: bytes, body: bytes, publish_start_time: float) -> PublishFuture:
        """Add a message.

        Args:
            prefix: What stands before it in the request.
            body: The serialized message.
            publish_start_time: When its ``publish()`` was called, in wall seconds.
        """
        self._parts += (prefix, body)
        self.size += len(prefix) + len(body)
        if publish_start_time < self._publish_start_time:
            self._publish_start_time = publish_start_time
        future = PublishFuture(self._condition)
        self.futures.append(future)
        return future

    def commit(self) -> None:
        """Get ready to be sent. The batch is not open any more; no lock is held."""
        if self.tracing is not None:
            self.tracing.start()
        self._call_state = self._policy.start_call()
        self._request = self._rpc.prepare(b"".join(self._parts))
        self._parts.clear()

    @property
    def total_timeout(self) -> float:
        """Seconds from the commit after which nothing of the batch is sent any more."""
        return self._policy.total_timeout

    def send(self, attempt: int, timeout: float | None) -> Call:
        """Start an RPC, without waiting for it."""
        if attempt == ORIGINAL:
            timeout = cast("CallState", self._call_state).next_timeout()
        elif self.tracing is not None:
            self.tracing.hedged(attempt)
        return self._rpc.start(
            self._request, self.topic, attempt, self._publish_start_time, timeout
        )

    def cancel(self, call: Call) -> None:
        """Cancel an RPC if it has not ended."""
        self._rpc.cancel(call)

    def outcome(self, call: Call) -> object:
        """Return the message ids of an ended RPC.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
        """
        return self._check(message_ids(call))

    def _check(self, ids: list[str]) -> list[str]:
        if len(ids) != len(self.futures):
            _LOGGER.error("Only %s of %s messages were published.", len(ids), len(self.futures))
            raise PublishError("Some messages were not successfully published.")
        return ids

    def judge(self, error: BaseException) -> Failed:
        """Ask the retry policy about an error of the original."""
        return cast("CallState", self._call_state).judge(error)

    def succeed(self, answer: object, attempt: int) -> None:
        """Resolve the futures with the message ids."""
        ids = cast("list[str]", answer)
        if self.tracing is None:
            self._settle(ids, None)
        else:
            self._workers.submit(self._end_spans_and_settle, ids, None, attempt)

    def fail(self, failure: Fail) -> None:
        """Fail the futures with what the official client would raise."""
        error = failure.error
        if failure.retry_timed_out:
            error = exceptions.RetryError(f"Timeout of {self.total_timeout:0.1f}s exceeded", error)
            error.__cause__ = failure.error
        if self.tracing is None:
            self._settle(None, error)
        else:
            self._workers.submit(self._end_spans_and_settle, None, error, ORIGINAL)

    def send_and_wait(self, deadline: float, clock: Callable[[], float]) -> None:
        """Commit, send and decide the batch on this thread, without a hedge.

        Args:
            deadline: When to give up; monotonic seconds.
            clock: Tells them.
        """
        try:
            self.commit()
            while True:
                try:
                    ids = self._check(
                        self._rpc.call(
                            self._request, self.topic, self._publish_start_time, deadline - clock()
                        )
                    )
                except Exception as error:
                    backoff = self.judge(error).backoff
                    if backoff is None or clock() + backoff >= deadline:
                        raise
                    time.sleep(backoff)
                else:
                    break
        except Exception as error:  # noqa: BLE001 - R8: every accepted publish ends
            self._settle(None, error)
        else:
            self._settle(ids, None)

    def orphan(self) -> None:
        """Fail the futures in a forked child; the parent sends the batch."""
        orphan(
            self.futures,
            RuntimeError(
                "the message was accepted before this process was forked: its parent sends it"
            ),
        )

    def _end_spans_and_settle(
        self, ids: list[str] | None, error: BaseException | None, attempt: int
    ) -> None:
        # Spans first, as officially. On a worker, because what exports them is a user's code.
        tracing = cast("BatchTracing", self.tracing)
        if ids is not None:
            tracing.succeed(ids, attempt)
        elif error is not None:
            tracing.fail(error)
        self._settle(ids, error)

    def _settle(self, ids: list[str] | None, error: BaseException | None) -> None:
        self._owner.return_credit(self)
        settle(
            self.futures,
            self._condition,
            itertools.repeat(None) if ids is None else ids,
            error,
            self._run_callbacks,
        )
        self._owner.forget(self)

    def _run_callbacks(self, future: PublishFuture) -> None:
        # A job a future: a callback that blocks holds up no other message, not even of its batch.
        self._workers.submit(invoke_callbacks, future)


@functools.lru_cache(maxsize=256)
def topic_field(topic: str) -> bytes:
    """Serialize a request that has a topic and no message yet."""
    encoded = topic.encode()
    return _TOPIC_TAG + varint(len(encoded)) + encoded if encoded else b""


def message_prefix(body: bytes) -> bytes:
    """Return what stands before a serialized message in a request."""
    return _MESSAGE_TAG + varint(len(body))
