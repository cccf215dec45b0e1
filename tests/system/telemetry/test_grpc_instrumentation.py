"""With ``opentelemetry-instrumentation-grpc`` on, whose spans are those of the RPCs."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import PublisherOptions
from opentelemetry import trace
from opentelemetry.instrumentation.grpc import GrpcInstrumentorClient
from opentelemetry.sdk.trace import ReadableSpan

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from ..conftest import ONE_MESSAGE, TOPIC, Make, wait_until
from .conftest import Recorder

RPC = "/google.pubsub.v1.Publisher/Publish"


@pytest.fixture(autouse=True)
def _instrumentation(recorder: Recorder) -> Iterator[None]:
    """Instrument what makes channels, before clients are made."""
    instrumentor = GrpcInstrumentorClient()  # type: ignore[no-untyped-call]
    instrumentor.instrument()
    yield
    instrumentor.uninstrument()


def code(span: ReadableSpan) -> object:
    """Return the status code that an RPC's span ended with."""
    return (span.attributes or {})["rpc.grpc.status_code"]


@pytest.mark.parametrize("tracing", [False, True], ids=["alone", "with tracing"])
def test_hedging_works_and_every_attempt_is_a_span(
    server: PubSubServer, recorder: Recorder, make: Make, tracing: bool
) -> None:
    """The hedge is answered, the loser is cancelled on the server, and both spans say so.

    The metadata of each attempt names its own span, beside the telemetry header.
    """
    options = PublisherOptions(enable_open_telemetry_tracing=tracing)
    publisher = make(tokens=1, publisher_options=options)
    recorder.clear()
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
    publisher.publish(TOPIC, b"data").result(timeout=5)
    wait_until(lambda: len(recorder.named(RPC)) == 2)
    original, hedge = recorder.named(RPC)
    assert code(original) == grpc.StatusCode.CANCELLED.value[0]
    assert code(hedge) == grpc.StatusCode.OK.value[0]
    wait_until(lambda: server.attempts()[0].outcome == "cancelled")
    assert [attempt.attempt_number for attempt in server.attempts()] == [0, 1]
    assert len(recorder.named("orders publish")) == tracing
    for attempt, span in zip(server.attempts(), (original, hedge), strict=True):
        parts = str(dict(attempt.metadata)["traceparent"]).split("-")
        assert parts[1:3] == [f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"]


def test_the_spans_are_the_official_ones(
    server: PubSubServer, recorder: Recorder, make: Make
) -> None:
    """An RPC belongs to all messages of its batch, so its span has no parent, as officially."""
    described = []
    for publisher in (pubsub_v1.PublisherClient(ONE_MESSAGE), make()):
        recorder.clear()
        with trace.get_tracer("shop").start_as_current_span("order"):
            publisher.publish(TOPIC, b"data").result(timeout=5)
        publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)
        wait_until(lambda: len(recorder.named(RPC)) == 2)
        spans = recorder.named(RPC)
        described.append([(s.kind, s.parent, code(s), s.status.status_code) for s in spans])
        publisher.transport.close()
    official, hedged = described
    assert hedged == official
    assert all(parent is None for _, parent, _, _ in hedged)
