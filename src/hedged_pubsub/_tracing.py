"""OpenTelemetry spans as the official client makes them, and what hedging adds to them.

Each message has its create span, each batch its RPC span. Hedging adds events to the create spans
and the number of the attempt to the RPC span; nothing is added to the messages but what the
official client adds. An error in here, or in an exporter, never fails a publish.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from google.cloud.pubsub_v1.open_telemetry.publish_message_wrapper import PublishMessageWrapper
from google.cloud.pubsub_v1.publisher._batch.thread import Batch as OfficialBatch
from google.pubsub_v1 import types as gapic_types
from opentelemetry import trace

from hedged_pubsub.events import ORIGINAL

_LOGGER = logging.getLogger(__name__)


class MessageTracing:
    """The spans of one message until it is in a batch.

    Args:
        message: The raw message; the trace context is injected into its attributes.
        topic: The topic's full name.
    """

    def __init__(self, message: Any, topic: str) -> None:
        self.wrapper = PublishMessageWrapper(gapic_types.PubsubMessage.wrap(message))
        self._run("start_create_span", topic, "")

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
        self._run("end_create_span", error)

    def batched(self) -> None:
        """The message is in a batch, which takes over from here."""
        self._run("end_publisher_batching_span")

    def refused(self, error: BaseException) -> None:
        """No batch takes the message."""
        self._run("end_publisher_batching_span", error)
        self._run("end_create_span", error)

    def _run(self, method: str, *args: object) -> None:
        try:
            getattr(self.wrapper, method)(*args)
        except Exception:
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
        self._message_wrappers: list[PublishMessageWrapper] = []
        self._rpc_span: trace.Span | None = None

    def add(self, message: MessageTracing) -> None:
        """Take over a message's create span."""
        self._message_wrappers.append(message.wrapper)

    def start(self) -> None:
        """Start the RPC span, linked with the create spans."""
        try:
            OfficialBatch._start_publish_rpc_span(cast("Any", self))
        except Exception:
            _LOGGER.exception("tracing a batch failed; publishing goes on")

    def hedged(self, attempt: int) -> None:
        """Note that a hedge is sent."""
        try:
            for span in self._create_spans():
                span.add_event("publish start (hedged)", _now() | {"attempt": attempt})
            if self._rpc_span is not None:
                self._rpc_span.set_attribute("gcp_pubsub.publish.attempt", attempt)
        except Exception:
            _LOGGER.exception("tracing a hedge failed; publishing goes on")

    def succeed(self, message_ids: Sequence[str], attempt: int) -> None:
        """End all spans; the event tells whether the original or a hedge was answered."""
        name = "publish end" if attempt == ORIGINAL else "publish end (hedged)"
        try:
            if self._rpc_span is not None:
                self._rpc_span.set_attribute("gcp_pubsub.publish.answered_attempt", attempt)
                self._rpc_span.end()
            now = _now()
            for span, message_id in zip(self._create_spans(), message_ids, strict=True):
                span.add_event(name, now)
                span.set_attribute("messaging.message.id", message_id)
                span.end()
        except Exception:
            _LOGGER.exception("tracing a batch failed; publishing goes on")

    def fail(self, error: BaseException) -> None:
        """End all spans with an error."""
        try:
            spans = self._create_spans()
            for span in spans if self._rpc_span is None else [self._rpc_span, *spans]:
                span.record_exception(error)
                span.set_status(trace.Status(status_code=trace.StatusCode.ERROR))
                span.end()
        except Exception:
            _LOGGER.exception("tracing a batch failed; publishing goes on")

    def _create_spans(self) -> list[trace.Span]:
        spans = (wrapper.create_span for wrapper in self._message_wrappers)
        return [trace.INVALID_SPAN if span is None else span for span in spans]


def _now() -> dict[str, str | int]:
    return {"timestamp": str(datetime.now())}
