"""A batch driven by threads: its futures, and what the driver needs of it."""

from __future__ import annotations

import contextvars
import itertools
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from hedged_pubsub._batch import BatchContents
from hedged_pubsub._sync.driver import Call
from hedged_pubsub._sync.future import (
    PublishFuture,
    SharedCondition,
    invoke_callbacks,
    orphan,
    settle,
)
from hedged_pubsub._sync.rpc import PublishRpc, message_ids
from hedged_pubsub._sync.workers import Workers
from hedged_pubsub.call_policy import CallPolicy
from hedged_pubsub.events import ORIGINAL, Fail


class BatchOwner(Protocol):
    """Whom a batch tells about its end."""

    def return_credit(self, batch: Batch) -> None:
        """The batch is decided; its futures are not resolved yet."""

    def forget(self, batch: Batch) -> None:
        """All futures of the batch have their outcome."""


class Batch(BatchContents):
    """Messages of one topic and one call policy, from the first one's arrival to the outcome.

    While it is open the batch lock guards it; once committed it does not change.

    Args:
        topic: The topic's full name.
        policy: The retry and the timeout of its messages.
        rpc: How it is sent.
        workers: Run what is a user's code: done-callbacks, and exporters of spans.
        owner: Told about its end.

    Attributes:
        futures: Those of the messages.
    """

    __slots__ = ("_owner", "_request", "_rpc", "_shared", "_workers", "futures")

    def __init__(
        self,
        topic: str,
        policy: CallPolicy,
        rpc: PublishRpc,
        workers: Workers,
        owner: BatchOwner,
    ) -> None:
        super().__init__(topic, policy)
        self._rpc = rpc
        self._workers = workers
        self._owner = owner
        self.futures: list[PublishFuture] = []
        self._shared = SharedCondition()
        self._request: Any = None

    def add(self, prefix: bytes, body: bytes, publish_start_time: float) -> PublishFuture:
        """Add a message; see ``append``."""
        self.append(prefix, body, publish_start_time)
        future = PublishFuture(self._shared)
        self.futures.append(future)
        return future

    @property
    def runs_users_code(self) -> bool:
        """Whether sending it may run a user's code: an interceptor, or a span processor."""
        return self._tracing is not None or not self._rpc.is_plain

    def commit(self) -> None:
        """Get ready to be sent. The batch is not open any more; no lock is held."""
        self._request = self._rpc.prepare(self.serialize())

    def send(self, attempt: int, timeout: float | None) -> Call:
        """Start an RPC, without waiting for it."""
        if attempt == ORIGINAL:
            timeout = self.next_timeout()
        elif self._tracing is not None:
            self._tracing.hedged(attempt)
        connection = self._rpc.connection(attempt)
        self.travels_on(attempt, connection)
        return self._rpc.start(
            connection, self._request, self.topic, attempt, self.publish_start_time, timeout
        )

    def cancel(self, call: Call) -> None:
        """Cancel an RPC if it has not ended."""
        self._rpc.cancel(call)

    def outcome(self, call: Call) -> object:
        """Return the message ids of an ended RPC.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: What the official client would raise.
        """
        self._rpc.ended(call)
        return self.check(message_ids(call))

    def succeed(self, answer: object, attempt: int) -> None:
        """Resolve the futures with the message ids."""
        ids = cast("list[str]", answer)
        if attempt == ORIGINAL:
            self.original_on.heard()
        else:
            self._rpc.overtaken(self.original_on, self.hedges_on)
        if self._tracing is None:
            self._settle(ids, None)
        else:
            self._workers.submit(self._end_spans_and_settle, ids, None, attempt)

    def fail(self, failure: Fail) -> None:
        """Fail the futures with what the official client would raise."""
        error = self.error_of(failure)
        if self._tracing is None:
            self._settle(None, error)
        else:
            self._workers.submit(self._end_spans_and_settle, None, error, ORIGINAL)

    def send_and_wait(self, deadline: float, clock: Callable[[], float]) -> bool:
        """Commit, send and decide the batch on this thread, without a hedge.

        Args:
            deadline: When to give up; monotonic seconds.
            clock: Tells them.

        Returns:
            Whether there was time enough: the batch is stored, or was refused for good.
        """
        try:
            self.commit()
            ids = self._call_until(deadline, clock)
        except Exception as error:  # noqa: BLE001 - R8: every accepted publish ends
            self._end_spans_and_settle(None, error, ORIGINAL)
            return not self.judge(error).transient
        self._end_spans_and_settle(ids, None, ORIGINAL)
        return True

    def _call_until(self, deadline: float, clock: Callable[[], float]) -> list[str]:
        while True:
            try:
                return self.check(
                    self._rpc.call(
                        self._request, self.topic, self.publish_start_time, deadline - clock()
                    )
                )
            except Exception as error:
                backoff = self.judge(error).backoff
                if backoff is None or clock() + backoff >= deadline:
                    raise
                time.sleep(backoff)

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
        try:
            if self._tracing is not None:
                if ids is not None:
                    self._tracing.succeed(ids, attempt)
                elif error is not None:
                    self._tracing.fail(error)
        finally:  # R8: not even a SystemExit in there keeps the publish from ending
            self._settle(ids, error)

    def _settle(self, ids: list[str] | None, error: BaseException | None) -> None:
        self._owner.return_credit(self)
        settle(
            self.futures,
            self._shared,
            itertools.repeat(None) if ids is None else ids,
            error,
            self._run_callbacks,
        )
        self._owner.forget(self)

    def _run_callbacks(self, future: PublishFuture) -> None:
        # A job a future: a callback that blocks holds up no other message, not even of its batch.
        # In a context of its own, so that what it sets there does not leak into other callbacks.
        self._workers.submit(contextvars.Context().run, invoke_callbacks, future)
