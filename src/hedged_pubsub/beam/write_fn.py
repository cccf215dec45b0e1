"""The ``DoFn`` of the sink: publishes elements, and ends a bundle when all of it is stored."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import apache_beam as beam
from apache_beam.metrics import Metrics
from apache_beam.metrics.metric import Lineage
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue
from google.api_core.exceptions import InvalidArgument
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError

from hedged_pubsub.beam.messages import DeadLetter, Message, MessageMaker, RefusedError
from hedged_pubsub.beam.publishers import (
    SharedPublisher,
    publish_alone,
    send_open_batches,
)

# Arguments of ``publish()``, which takes attributes by name: a message with one of these as an
# attribute is published alone.
_ARGUMENTS: Final = frozenset({"data", "ordering_key", "retry", "self", "timeout", "topic"})

_MIN_UNITS: Final = 1_000
_UNIT_BYTES: Final = 8_192
"""Once in so many messages, or units of bytes, it is checked which are stored."""

_SAMPLED: Final = 100
"""Of so many messages, the latency of one is measured: what a done-callback costs."""

_SINGLE_REQUESTS: Final = 16
"""Requests at a time when the messages of a refused batch are sent singly."""


class _Pending(NamedTuple):
    """A message that is under way."""

    future: Future[str]
    element: Any
    message: Message
    timestamp: Timestamp


class PublishFn(beam.DoFn):  # type: ignore[misc]
    """Publishes elements.

    Args:
        namespace: That of the metrics: the class of the sink.
        maker: What makes a message of an element.
        publisher: The publisher of each process.
        has_ids: Whether elements come in pairs with an id that was assigned to them.
        dead_letters: Whether what is refused for good is put out, rather than raised.
    """

    def __init__(
        self,
        namespace: type,
        maker: MessageMaker,
        publisher: SharedPublisher,
        *,
        has_ids: bool,
        dead_letters: bool,
    ) -> None:
        super().__init__()
        self._maker = maker
        self._shared = publisher
        self._has_ids = has_ids
        self._dead_letters = dead_letters
        self._published = Metrics.counter(namespace, "messages_published")
        self._refused = Metrics.counter(namespace, "dead_letters")
        self._hedges_sent = Metrics.counter(namespace, "hedges_sent")
        self._hedges_won = Metrics.counter(namespace, "hedges_won")
        self._retries = Metrics.counter(namespace, "retries")
        self._latency = Metrics.distribution(namespace, "publish_latency_ms")

    def setup(self) -> None:
        """Open the publisher, for all bundles."""
        self._process_publisher = self._shared.acquire()
        self._publisher = self._process_publisher.open()
        self._topics: set[str] = set()

    def teardown(self) -> None:
        """Close it, if no other thread uses it."""
        if getattr(self, "_process_publisher", None) is not None:
            self._process_publisher.close()
            del self._process_publisher, self._publisher

    def start_bundle(self) -> None:
        """Have nothing under way."""
        self._pending: list[_Pending] = []
        self._latencies: deque[float] = deque()
        self._units = _MIN_UNITS

    def process(
        self, element: Any, timestamp: Timestamp = beam.DoFn.TimestampParam
    ) -> Iterable[WindowedValue] | None:
        """Publish an element; wait only where flow control does."""
        assigned_id = ""
        if self._has_ids:
            assigned_id, element = element
        try:
            message = self._maker.make(element, timestamp, assigned_id)
        except RefusedError as refused:
            return [self._refuse(element, refused.topic, refused.error, timestamp)]
        if message.topic not in self._topics:
            self._report_lineage(message.topic)
        attributes = message.attributes
        if attributes and not _ARGUMENTS.isdisjoint(attributes):
            return self._publish_alone([_Pending(Future(), element, message, timestamp)])
        try:
            future = self._publisher.publish(message.topic, message.data, **attributes)
        except MessageTooLargeError as error:  # with its attributes and its topic
            return [self._refuse(element, message.topic, error, timestamp)]
        self._pending.append(_Pending(future, element, message, timestamp))
        if not len(self._pending) % _SAMPLED:
            self._measure(future)
        self._units -= 1 + len(message.data) // _UNIT_BYTES
        return self._check_stored() if self._units <= 0 else None

    def finish_bundle(self) -> Iterable[WindowedValue]:
        """Wait until all is stored, or raise what a message has failed with."""
        if not self._pending:
            return []
        send_open_batches(self._publisher)
        letters = self._settle(self._pending)
        self._pending = []
        counts = self._process_publisher.take_counts()
        self._hedges_sent.inc(counts.hedges_sent)
        self._hedges_won.inc(counts.hedges_won)
        self._retries.inc(counts.retries)
        while self._latencies:
            self._latency.update(round(1000 * self._latencies.popleft()))
        return letters

    def _check_stored(self) -> list[WindowedValue]:
        """Let go of what is stored; flow control bounds what is not."""
        done: list[_Pending] = []
        left: list[_Pending] = []
        for one in self._pending:  # each is asked once: meanwhile others become done
            (done if one.future.done() else left).append(one)
        self._pending = left
        # As much again, so that a message is looked at a few times only.
        units = sum(1 + len(one.message.data) // _UNIT_BYTES for one in left)
        self._units = max(_MIN_UNITS, units)
        return self._settle(done)

    def _settle(self, pending: list[_Pending]) -> list[WindowedValue]:
        """Wait for messages; raise what one has failed with, or send it by itself."""
        refused = []
        for one in pending:
            error = one.future.exception()
            if error is None:
                continue
            if not self._dead_letters or not isinstance(error, InvalidArgument):
                raise error
            refused.append(one)  # or it is another message of its batch that was
        self._published.inc(len(pending) - len(refused))
        return self._publish_alone(refused) if refused else []

    def _publish_alone(self, messages: list[_Pending]) -> list[WindowedValue]:
        """Publish each message in a request of its own."""

        def publish(one: _Pending) -> InvalidArgument | None:
            try:
                publish_alone(publisher, one.message)
            except InvalidArgument as error:
                return error
            return None

        publisher = self._publisher
        with ThreadPoolExecutor(min(len(messages), _SINGLE_REQUESTS)) as pool:
            errors = list(pool.map(publish, messages))
        self._published.inc(errors.count(None))
        return [
            self._refuse(one.element, one.message.topic, error, one.timestamp)
            for one, error in zip(messages, errors, strict=True)
            if error is not None
        ]

    def _refuse(
        self, element: Any, topic: str | None, error: Exception, timestamp: Timestamp
    ) -> WindowedValue:
        """Return the dead letter of an element, or raise the error if there are to be none."""
        if not self._dead_letters:
            raise error
        self._refused.inc()
        letter = DeadLetter(element, topic, f"{type(error).__name__}: {error}")
        return GlobalWindows.windowed_value(letter, timestamp)

    def _measure(self, future: Future[str]) -> None:
        start, latencies = time.monotonic(), self._latencies
        future.add_done_callback(lambda _: latencies.append(time.monotonic() - start))

    def _report_lineage(self, topic: str) -> None:
        self._topics.add(topic)
        _, project, _, name = topic.split("/")
        Lineage.sinks().add("pubsub", project, name, subtype="topic")
