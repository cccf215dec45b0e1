"""OpenTelemetry spans as the official client makes them, and what hedging adds to them.

Each message has its create span, each batch its RPC span. Hedging adds events to the former and the
number of the attempt to the latter. An error in here, or in an exporter, never fails a publish.
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

from hedged_pubsub._core import log
from hedged_pubsub._core.events import ORIGINAL


class MessageTracing:
    """The spans of one raw message, which gets the trace context, until it is in a batch."""

    def __init__(self, message: Any, topic: str) -> None:
        self._wrapper = PublishMessageWrapper(gapic_types.PubsubMessage.wrap(message))
        self._failed = False  # if so, no spans follow: each needs what failed
        self._run("start_create_span", topic, "")

    @property
    def create_span(self) -> trace.Span:
        """The span from ``publish()`` to the outcome; an invalid one if it could not be made."""
        span = self._wrapper.create_span
        return trace.INVALID_SPAN if span is None else cast("trace.Span", span)

    def flow_control_started(self) -> None:
        self._run("start_publisher_flow_control_span")

    def flow_control_ended(self) -> None:
        self._run("end_publisher_flow_control_span")
        self._run("start_publisher_batching_span")

    def flow_control_refused(self, error: BaseException) -> None:
        self._refused("end_publisher_flow_control_span", error)

    def batched(self) -> None:
        """End the span of batching: the message is in a batch."""
        self._run("end_publisher_batching_span")

    def refused(self, error: BaseException) -> None:
        """End the spans with an error: no batch takes the message."""
        self._refused("end_publisher_batching_span", error)

    def _refused(self, end: str, error: BaseException) -> None:
        self._run(end, error)
        self._failed = self._wrapper.create_span is None
        self._run("end_create_span", error)

    def _run(self, method: str, *args: object) -> None:
        if self._failed:
            return
        try:
            getattr(self._wrapper, method)(*args)
        except Exception as error:  # noqa: BLE001 - a processor's, of the user
            self._failed = True
            text = "tracing a message failed in %s; publishing goes on"
            log.write(logging.ERROR, text, method, error=error)


class BatchTracing:
    """The spans of one batch, from its commit to its outcome."""

    # What the official batch's method that is used below reads of a batch.
    _OPEN_TELEMETRY_TRACER_NAME = OfficialBatch._OPEN_TELEMETRY_TRACER_NAME
    _OPEN_TELEMETRY_MESSAGING_SYSTEM = OfficialBatch._OPEN_TELEMETRY_MESSAGING_SYSTEM

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._message_wrappers: list[MessageTracing] = []
        self._rpc_span: trace.Span | None = None
        self._is_hedged = False

    def add(self, message: MessageTracing) -> None:
        self._message_wrappers.append(message)

    def start(self) -> None:
        """Start the RPC span, linked with the create spans."""
        # It has no parent, as officially: the batch may be sent by the thread of whoever publishes
        # its last message, within a span that has nothing to do with the other messages.
        token = context.attach(context.Context())
        try:
            OfficialBatch._start_publish_rpc_span(cast("Any", self))
        except Exception as error:  # noqa: BLE001 - a processor's, of the user
            _report(error)
        finally:
            context.detach(token)

    def hedged(self, attempt: int) -> None:
        """Note that a hedge is sent."""
        self._is_hedged = True
        event = ("publish start (hedged)", _now() | {"attempt": attempt})
        _tell(self._create_spans(), lambda span: span.add_event(*event))
        self._note_attempt(attempt)

    def succeed(self, message_ids: Sequence[str], attempt: int) -> None:
        """End all spans; the event tells whether the original or a hedge was answered."""
        if self._is_hedged:
            self._note_attempt(attempt)
        event = ("publish end" if attempt == ORIGINAL else "publish end (hedged)", _now())
        ids = iter(message_ids)

        def end(span: trace.Span) -> None:
            message_id = next(ids)
            span.add_event(*event)
            span.set_attribute("messaging.message.id", message_id)
            span.end()

        _tell(self._rpc_spans(), lambda span: span.end())
        _tell(self._create_spans(), end)

    def fail(self, error: BaseException) -> None:
        def end(span: trace.Span) -> None:
            span.record_exception(error)
            span.set_status(trace.Status(status_code=trace.StatusCode.ERROR))
            span.end()

        _tell([*self._rpc_spans(), *self._create_spans()], end)

    def _note_attempt(self, attempt: int) -> None:
        """Note on the RPC span which attempt was sent last, and in the end which was answered."""
        attribute = ("gcp_pubsub.publish.attempt", attempt)
        _tell(self._rpc_spans(), lambda span: span.set_attribute(*attribute))

    def _rpc_spans(self) -> list[trace.Span]:
        return [] if self._rpc_span is None else [self._rpc_span]

    def _create_spans(self) -> list[trace.Span]:
        return [message.create_span for message in self._message_wrappers]


def _tell(spans: Sequence[trace.Span], tell: Callable[[trace.Span], object]) -> None:
    """Tell each span something; where one fails, in a user's processor, the others are told too."""
    errors: list[Exception] = []
    for span in spans:
        try:
            tell(span)
        except Exception as error:  # noqa: BLE001 - a processor's, of the user
            errors.append(error)
    if errors:  # one line for all spans
        _report(errors[0])


def _report(error: Exception) -> None:
    log.write(logging.ERROR, "tracing a batch failed; publishing goes on", error=error)


def _now() -> dict[str, str | int]:
    return {"timestamp": str(datetime.now())}
