"""OpenTelemetry: the spans of the synchronous publisher, for every way a message can take."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError, MessageTooLargeError
from google.cloud.pubsub_v1.types import (
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer

from ..test_rules import stall_originals
from .publishers import publishing

TRACING = PublisherOptions(
    enable_open_telemetry_tracing=True,
    flow_control=PublishFlowControl(
        message_limit=1, byte_limit=20_000_000, limit_exceeded_behavior=LimitExceededBehavior.ERROR
    ),
)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Collect the spans that end from now on."""
    collecting = InMemorySpanExporter()
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        trace.set_tracer_provider(TracerProvider())
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(SimpleSpanProcessor(collecting))
    return collecting


def named(spans: Sequence[ReadableSpan], name: str) -> ReadableSpan:
    """Return the one span of that name."""
    (span,) = (span for span in spans if span.name == name)
    return span


async def test_a_hedged_message(
    server: PubSubServer, topic: str, exporter: InMemorySpanExporter
) -> None:
    """Create span below the caller's, RPC span linked with it, events for the hedge."""
    async with publishing(
        server, tokens=1, script=stall_originals(), publisher_options=TRACING
    ) as publisher:
        exporter.clear()
        tracer = trace.get_tracer("test")
        with tracer.start_as_current_span("a user's span") as outer:
            message_id = await publisher.publish(topic, b"data")
    spans = exporter.get_finished_spans()
    create = named(spans, "orders create")
    publish = named(spans, "orders publish")
    assert create.parent is not None
    assert create.parent.span_id == outer.get_span_context().span_id
    assert publish.parent is None
    assert [link.context.span_id for link in publish.links] == [create.context.span_id]
    assert [event.name for event in create.events][-2:] == [
        "publish start (hedged)",
        "publish end (hedged)",
    ]
    assert (create.attributes or {})["messaging.message.id"] == message_id
    assert (publish.attributes or {})["gcp_pubsub.publish.attempt"] == 1
    names = {span.name for span in spans}
    assert {"publisher flow control", "publisher batching"} < names
    (stored,) = server.messages()
    assert "googclient_traceparent" in dict(stored.attributes)


async def test_messages_that_fail(
    server: PubSubServer, topic: str, exporter: InMemorySpanExporter
) -> None:
    """Refused by flow control, by size, by the service: each create span ends with its error."""
    missing = server.topic_path("missing")
    async with publishing(
        server, script=FaultScript(latency=Fixed(0.05)), publisher_options=TRACING
    ) as publisher:
        with pytest.raises(MessageTooLargeError):
            await publisher.enqueue(topic, b"x" * 10_000_001)
        failing = await publisher.enqueue(missing, b"data")
        with pytest.raises(FlowControlLimitError):
            await publisher.enqueue(topic, b"data")
        with pytest.raises(exceptions.NotFound):
            await failing
    errors = [
        (span.name, [event.name for event in span.events if event.name == "exception"])
        for span in exporter.get_finished_spans()
        if span.name.endswith(("create", "publish"))
    ]
    assert sorted(errors) == [
        ("missing create", ["exception"]),
        ("missing publish", ["exception"]),
        ("orders create", ["exception"]),
        ("orders create", ["exception"]),
    ]
