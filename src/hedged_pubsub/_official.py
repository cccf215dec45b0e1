"""All that this package touches of the private parts of the official client and of api-core.

The contract tests of this module run at the lowest and at the newest supported releases, so that
a change over there shows here first.
"""

from __future__ import annotations

import collections
import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from google.api_core import gapic_v1
from google.api_core.retry import Retry, exponential_sleep_generator
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.publisher import futures
from google.cloud.pubsub_v1.publisher._batch import base, thread
from google.pubsub_v1 import types as gapic_types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from opentelemetry import trace

_LOGGER = logging.getLogger(__name__)

_RAW_PUBLISH_REQUEST: Any = gapic_types.PublishRequest.pb()


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryParts:
    """What a ``google.api_core.retry.Retry`` would do, without its ``time.sleep``.

    Attributes:
        predicate: Whether an error is transient.
        on_error: Told about every transient error, or ``None``.
        timeout: Seconds from the first attempt after which no other starts; ``None`` for no end.
        backoffs: Makes the waits of one call, in seconds.
    """

    predicate: Callable[[Exception], bool]
    on_error: Callable[[Exception], object] | None
    timeout: float | None
    backoffs: Callable[[], Iterator[float]]


def retry_parts(retry: Retry) -> RetryParts:
    """Take a retry apart."""

    def backoffs() -> Iterator[float]:
        return cast(
            "Iterator[float]",
            exponential_sleep_generator(
                retry._initial, retry._maximum, multiplier=retry._multiplier
            ),
        )

    return RetryParts(
        predicate=retry._predicate,
        on_error=retry._on_error,
        timeout=retry._timeout,
        backoffs=backoffs,
    )


def publish_defaults(transport: PublisherGrpcTransport) -> tuple[Retry | None, object]:
    """Return the retry and the timeout that the generated ``publish`` has by default."""
    method: Any = transport._wrapped_methods[transport.publish]
    return method._retry, method._timeout


def call_arguments(transport: PublisherGrpcTransport, topic: str) -> Mapping[str, Any]:
    """Return what the official client passes to the RPC beside request and timeout.

    That is the metadata (``x-goog-api-client``, ``x-goog-request-params``) and, if one is set,
    the compression. It is asked for by calling the client's own wrapper around a target that only
    looks at its arguments, so that it is the same in every release.
    """
    method: Any = copy.copy(transport._wrapped_methods[transport.publish])
    method._target = lambda _request, **arguments: arguments
    method._start_span_fn = None  # newer releases can trace the call; this is none
    routing = gapic_v1.routing_header.to_grpc_metadata((("topic", topic),))
    return cast("Mapping[str, Any]", method(None, retry=None, timeout=None, metadata=(routing,)))


class InterceptedBatch(thread.Batch):  # type: ignore[misc]
    """The official batch, but for its commit: the client is told instead of a thread started."""

    def __init__(self, client: InterceptingClient, topic: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(client, topic, *args, **kwargs)
        # One entry a message. Where a message is refused, or goes into the next batch, the entry
        # stands behind those of the accepted ones until it is taken back.
        self._published_at: list[float] = []

    @property
    def topic(self) -> str:
        """The topic's full name."""
        return cast("str", self._topic)

    @property
    def call_options(self) -> tuple[Any, Any]:
        """The retry and the timeout that were given for the messages of this batch."""
        return self._commit_retry, self._commit_timeout

    @property
    def publish_start_time(self) -> float:
        """Wall time of the oldest ``publish()`` in the batch, in seconds since the epoch."""
        return min(self._published_at[: len(self._futures)])

    def publish(self, wrapper: Any) -> futures.Future | None:
        """Add a message, as officially. The client holds its batch lock."""
        if self._status == base.BatchStatus.ERROR:
            # A full batch stays the current one until the next message comes. If it has failed by
            # then, the official one refuses that message with an AssertionError; a new batch will
            # do, as it does after a success.
            return None
        # First, because a full batch may be on its way before the call below returns.
        self._published_at.append(self._client.publishing_since())
        future = None
        try:
            future = super().publish(wrapper)
        finally:
            if future is None:
                self._published_at.pop()
        return future

    def _start_commit_thread(self) -> None:
        self._client.batch_committed(self)

    def build_request(self) -> Any:
        """Build the request; all attempts share it."""
        self._status = base.BatchStatus.IN_PROGRESS
        messages = [wrapper.message._pb for wrapper in self._message_wrappers]
        return gapic_types.PublishRequest.wrap(
            _RAW_PUBLISH_REQUEST(topic=self._topic, messages=messages)
        )

    def start_span(self) -> None:
        """Start the RPC span, if tracing is on. It ends with the batch."""
        if self._client.open_telemetry_enabled:
            _guard_tracing(self._start_publish_rpc_span)

    def set_result(self, message_ids: Sequence[str]) -> None:
        """Resolve the futures, and run their callbacks."""
        self._status = base.BatchStatus.SUCCESS
        _guard_tracing(self._end_spans, message_ids)
        for future, message_id in zip(self._futures, message_ids, strict=True):
            _resolve(future.set_result, message_id)

    def set_exception(self, error: BaseException) -> None:
        """Fail the futures, and run their callbacks."""
        self._status = base.BatchStatus.ERROR
        _guard_tracing(self._fail_spans, error)
        for future in self._futures:
            _resolve(future.set_exception, error)

    def _end_spans(self, message_ids: Sequence[str]) -> None:
        if not self._client.open_telemetry_enabled:
            return
        if self._rpc_span is not None:
            self._rpc_span.end()
        end_time = str(datetime.now())
        for message_id, wrapper in zip(message_ids, self._message_wrappers, strict=True):
            span = wrapper.create_span
            span.add_event(name="publish end", attributes={"timestamp": end_time})
            span.set_attribute(key="messaging.message.id", value=message_id)
            wrapper.end_create_span()

    def _fail_spans(self, error: BaseException) -> None:
        if not self._client.open_telemetry_enabled:
            return
        if self._rpc_span is not None:
            self._rpc_span.record_exception(exception=error)
            self._rpc_span.set_status(trace.Status(status_code=trace.StatusCode.ERROR))
            self._rpc_span.end()
        for wrapper in self._message_wrappers:
            wrapper.end_create_span(exc=error)


def _guard_tracing(function: Callable[..., object], *args: object) -> None:
    try:
        function(*args)
    except Exception:
        _LOGGER.exception("tracing a batch failed; publishing goes on")


def _resolve(setter: Callable[[Any], object], value: object) -> None:
    try:
        setter(value)
    except BaseException:  # a SystemExit in one callback must not leave the next future pending
        _LOGGER.exception("a future could not be resolved or a callback of it failed")


class InterceptingClient(pubsub_v1.PublisherClient):  # type: ignore[misc]
    """The official client with its batch commit handed out.

    The official client commits batches while it holds its batch lock. This one only notes them
    there, and hands them on when the lock is released: sending is I/O.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Before the rest: the official constructor makes no batch, but a subclass may fail in it.
        self._committed: collections.deque[InterceptedBatch] = collections.deque()
        self._publishing = threading.local()
        super().__init__(*args, **kwargs)

    def intercept_batches(self) -> None:
        """From now on hand committed batches to ``send_batch``. Before the first publish only."""
        self._batch_class = InterceptedBatch

    def send_batch(self, batch: InterceptedBatch) -> None:
        """Take over a committed batch; no lock is held."""
        raise NotImplementedError

    def publishing_since(self) -> float:
        """Wall time at which the ``publish()`` that runs on this thread was called."""
        return cast("float", self._publishing.since)

    def batch_committed(self, batch: InterceptedBatch) -> None:
        """Note a committed batch. The batch lock is held."""
        if len(batch):
            self._committed.append(batch)

    def _send_committed(self) -> None:
        while self._committed:
            try:
                batch = self._committed.popleft()
            except IndexError:
                return  # another thread was faster
            self.send_batch(batch)

    def publish(self, topic: str, data: bytes, *args: Any, **kwargs: Any) -> futures.Future:
        """Publish as officially, then send what that has committed."""
        self._publishing.since = time.time()
        try:
            return super().publish(topic, data, *args, **kwargs)
        finally:
            self._send_committed()

    def stop(self) -> None:
        """Stop as officially, then send what that has committed."""
        try:
            super().stop()
        finally:
            self._send_committed()

    def commit_all(self) -> None:
        """Commit every open batch now; nothing to do once stopped, which did it."""
        with self._batch_lock:
            if not self._is_stopped:
                self._commit_sequencers()
        self._send_committed()

    @property
    def is_stopped(self) -> bool:
        """Whether ``stop()`` was called."""
        return cast("bool", self._is_stopped)

    def _wait_and_commit_sequencers(self) -> None:
        super()._wait_and_commit_sequencers()
        self._send_committed()

    def validate_universe(self) -> None:
        """Check the universe domain as the generated methods do before each call.

        Raises:
            ValueError: If client and credentials belong to different universes.
        """
        self._validate_universe_domain()
