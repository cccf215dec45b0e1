"""OpenTelemetry spans as the official client makes them, and what hedging adds to them.

Each message has its create span, each batch its RPC span. Hedging adds events to the create spans
and the number of the attempt to the RPC span; nothing is added to the messages but what the
official client adds. An error in here, or in an exporter, never fails a publish.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

from google.cloud.pubsub_v1.open_telemetry.publish_message_wrapper import PublishMessageWrapper
from google.cloud.pubsub_v1.publisher._batch.thread import Batch as OfficialBatch
from google.pubsub_v1 import types as gapic_types
from opentelemetry import context, trace

from hedged_pubsub.events import ORIGINAL

_LOGGER = logging.getLogger(__name__)


class MessageTracing:
    """The spans of one message until it is in a batch.

    After an error the spans that would follow are left out: each needs what failed.

    Args:
        message: The raw message; the trace context is injected into its attributes.
        topic: The topic's full name.
    """

    def __init__(self, message: Any, topic: str) -> None:
        self._wrapper = PublishMessageWrapper(gapic_types.PubsubMessage.wrap(message))
        self._failed = False
        self._run("start_create_span", topic, "")

    @property
    def create_span(self) -> trace.Span:
        """The span from ``publish()`` to the outcome; an invalid one if it could not be made."""
        span = self._wrapper.create_span
        return trace.INVALID_SPAN if span is None else cast("trace.Span", span)

    def wait_for_credit(self) -> None:
        """The message is about to pass flow control."""
        self._run("start_publisher_flow_control_span")

    def got_credit(self) -> None:
        """Flow control let the message pass."""
        self._run("end_publisher_flow_control_span")
        self._run("start_publisher_batching_span")

    def refused_credit(self, error: BaseException) -> None:
        """Flow control refused the message."""
        self._run("end_publisher_flow_control_span", error)
        self._end_create_span(error)

    def batched(self) -> None:
        """The message is in a batch, which takes over from here."""
        self._run("end_publisher_batching_span")

    def refused(self, error: BaseException) -> None:
        """No batch takes the message."""
        self._run("end_publisher_batching_span", error)
        self._end_create_span(error)

    def _end_create_span(self, error: BaseException) -> None:
        self._failed = self._wrapper.create_span is None
        self._run("end_create_span", error)

    def _run(self, method: str, *args: object) -> None:
        if self._failed:
            return
        try:
            getattr(self._wrapper, method)(*args)
        except Exception:
            self._failed = True
            _LOGGER.exception("tracing a message failed in %s; publishing goes on", method)


class BatchTracing:
    """The spans of one batch, from its commit to its outcome.

    Args:
        topic: The topic's full name.
    """

    # What the official batch's method below, which is borrowed, looks for in a batch.
    _OPEN_TELEMETRY_TRACER_NAME = OfficialBatch._OPEN_TELEMETRY_TRACER_NAME
    _OPEN_TELEMETRY_MESSAGING_SYSTEM = OfficialBatch._OPEN_TELEMETRY_MESSAGING_SYSTEM

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._message_wrappers: list[MessageTracing] = []
        self._rpc_span: trace.Span | None = None
        self._is_hedged = False

    def add(self, message: MessageTracing) -> None:
        """Take over a message's create span."""
        self._message_wrappers.append(message)

    def start(self) -> None:
        """Start the RPC span, linked with the create spans."""
        # It has no parent, as officially: the batch may be sent by the thread of whoever publishes
        # its last message, within a span that has nothing to do with the other messages.
        token = context.attach(context.Context())
        try:
            OfficialBatch._start_publish_rpc_span(cast("Any", self))
        except Exception:
            _LOGGER.exception("tracing a batch failed; publishing goes on")
        finally:
            context.detach(token)

    def hedged(self, attempt: int) -> None:
        """Note that a hedge is sent."""
        self._is_hedged = True
        attributes = _now() | {"attempt": attempt}
        _tell(
            self._create_spans(),
            lambda span: span.add_event("publish start (hedged)", attributes),
        )
        self._note_attempt(attempt)

    def succeed(self, message_ids: Sequence[str], attempt: int) -> None:
        """End all spans; the event tells whether the original or a hedge was answered."""
        if self._is_hedged:
            self._note_attempt(attempt)
        name = "publish end" if attempt == ORIGINAL else "publish end (hedged)"
        attributes = _now()
        ids = iter(message_ids)

        def end(span: trace.Span) -> None:
            message_id = next(ids)
            span.add_event(name, attributes)
            span.set_attribute("messaging.message.id", message_id)
            span.end()

        _tell(self._rpc_spans(), lambda span: span.end())
        _tell(self._create_spans(), end)

    def fail(self, error: BaseException) -> None:
        """End all spans with an error."""

        def end(span: trace.Span) -> None:
            span.record_exception(error)
            span.set_status(trace.Status(status_code=trace.StatusCode.ERROR))
            span.end()

        _tell([*self._rpc_spans(), *self._create_spans()], end)

    def _note_attempt(self, attempt: int) -> None:
        """Leave on the RPC span which attempt was sent last, and in the end which was answered."""
        _tell(
            self._rpc_spans(),
            lambda span: span.set_attribute("gcp_pubsub.publish.attempt", attempt),
        )

    def _rpc_spans(self) -> list[trace.Span]:
        return [] if self._rpc_span is None else [self._rpc_span]

    def _create_spans(self) -> list[trace.Span]:
        return [message.create_span for message in self._message_wrappers]


def _tell(spans: Sequence[trace.Span], tell: Callable[[trace.Span], object]) -> None:
    """Tell each span something; where one fails, in a user's processor, the others are told too."""
    first_error: Exception | None = None
    for span in spans:
        try:
            tell(span)
        except Exception as error:  # noqa: BLE001 - logged below, once for all spans
            first_error = first_error or error
    if first_error is not None:
        _LOGGER.error("tracing a batch failed; publishing goes on", exc_info=first_error)


def _now() -> dict[str, str | int]:
    return {"timestamp": str(datetime.now())}
