"""OpenTelemetry spans: those of the official client, and what hedging adds."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from google.api_core.retry import Retry
from google.cloud.pubsub_v1 import PublisherClient
from google.cloud.pubsub_v1.open_telemetry.publish_message_wrapper import PublishMessageWrapper
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError, MessageTooLargeError
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan

from hedged_pubsub.testing import Fault, FaultScript, Fixed, PubSubServer, Stall, Status, TooFewIds

from ..conftest import FAST, ONE_MESSAGE, TOPIC, Make, New, both_kinds, wait_until
from .conftest import Recorder

TRACED = PublisherOptions(
    enable_open_telemetry_tracing=True,
    flow_control=PublishFlowControl(
        message_limit=2, byte_limit=20_000_000, limit_exceeded_behavior=LimitExceededBehavior.ERROR
    ),
)
"""Tracing is on, and there is room for two messages."""

TOGETHER = BatchSettings(max_latency=60)
"""What is published before a flush is one batch."""

Scenario = Callable[[PublisherClient, PubSubServer], object]


def a_batch(publisher: PublisherClient, server: PubSubServer) -> None:
    """Two messages are stored, or fail."""
    futures = [publisher.publish(TOPIC, b"data", colour="blue") for _ in range(2)]
    flush = getattr(publisher, "flush", None) or publisher.stop
    flush()
    for future in futures:
        future.exception(timeout=5)


def within_a_span(publisher: PublisherClient, server: PubSubServer) -> None:
    """A program publishes within a span of its own, and completes a batch."""
    with trace.get_tracer("shop").start_as_current_span("order"):
        future = publisher.publish(TOPIC, b"data")
    future.result(timeout=5)


def no_topic(publisher: PublisherClient, server: PubSubServer) -> None:
    """The message fails at once."""
    publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)


def no_success_in_time(publisher: PublisherClient, server: PubSubServer) -> None:
    """The message fails after retries."""
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE")]))
    retry = Retry(initial=0.01, maximum=0.01, timeout=0.2)
    publisher.publish(TOPIC, b"data", retry=retry).exception(timeout=5)


def no_room(publisher: PublisherClient, server: PubSubServer) -> None:
    """Flow control refuses the third message."""
    server.set_script(FaultScript(latency=Fixed(0.1)))
    futures = [publisher.publish(TOPIC, b"data") for _ in range(2)]
    with suppress(FlowControlLimitError):  # which the asyncio publisher raises at once
        publisher.publish(TOPIC, b"data").result(timeout=5)
    for future in futures:
        future.result(timeout=5)


def too_large(publisher: PublisherClient, server: PubSubServer) -> None:
    """The message is refused."""
    with pytest.raises(MessageTooLargeError):
        publisher.publish(TOPIC, b"x" * 10_000_001)


def stopped(publisher: PublisherClient, server: PubSubServer) -> None:
    """The publisher takes no more messages."""
    publisher.stop()
    with pytest.raises(RuntimeError):
        publisher.publish(TOPIC, b"data")


SCENARIOS = [a_batch, within_a_span, no_topic, no_success_in_time, no_room, too_large]

_VARYING = {"timestamp", "exception.stacktrace", "exception.message", "messaging.message.id"}
"""Attributes that differ from run to run."""


def describe(spans: list[ReadableSpan]) -> list[dict[str, Any]]:
    """Say what of spans does not differ from run to run, sorted.

    Relatives are named; one that is not among them by a question mark.
    """
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    described = [
        {
            "name": span.name,
            "kind": span.kind,
            "parent": span.parent and names.get(span.parent.span_id, "?"),
            "links": sorted(names.get(link.context.span_id, "?") for link in span.links),
            "attributes": _plain(span.attributes),
            "status": (span.status.status_code, span.status.description),
            "events": [(event.name, _plain(event.attributes)) for event in span.events],
            "scope": span.instrumentation_scope and span.instrumentation_scope.name,
        }
        for span in spans
    ]
    return sorted(described, key=repr)


def _plain(attributes: Mapping[str, object] | None) -> dict[str, object]:
    return {key: key in _VARYING or value for key, value in sorted((attributes or {}).items())}


def spans_of(
    publisher: PublisherClient,
    scenario: Scenario,
    server: PubSubServer,
    recorder: Recorder,
    faults: Iterable[Fault] = (),
) -> list[dict[str, Any]]:
    """Run a scenario and describe its spans."""
    recorder.clear()
    server.clear()
    server.set_script(FaultScript(faults=faults))
    scenario(publisher, server)
    publisher.transport.close()
    return describe(recorder.spans())


@pytest.mark.parametrize(
    ("kind", "scenario"),
    [*itertools.product(("sync", "asyncio"), SCENARIOS), ("sync", stopped)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_spans_are_those_of_the_official_client(
    server: PubSubServer, recorder: Recorder, new_publisher: New, scenario: Scenario
) -> None:
    """Names, kinds, parents, links, attributes, events and status of all spans are the same."""
    waits: dict[Scenario, BatchSettings] = {a_batch: TOGETHER, no_topic: BatchSettings()}
    settings = waits.get(scenario, ONE_MESSAGE)
    official = spans_of(PublisherClient(settings, TRACED), scenario, server, recorder)
    publisher = new_publisher(settings, TRACED, hedging_settings=FAST)
    assert spans_of(publisher, scenario, server, recorder) == official != []


@both_kinds
def test_the_trace_context_in_the_message(
    server: PubSubServer, recorder: Recorder, new_publisher: New
) -> None:
    """A message has the attributes that it has officially: its own, and its create span's."""
    found: list[dict[str, str]] = []
    ids: list[object] = []
    for make_one in (PublisherClient, new_publisher):
        with make_one(ONE_MESSAGE, TRACED) as publisher:
            ids.append(publisher.publish(TOPIC, b"data", colour="blue").result(timeout=5))
        found.append(dict(server.messages()[-1].attributes))
    assert found[0].keys() == found[1].keys() == {"colour", "googclient_traceparent"}
    for attributes, message_id, span in zip(
        found, ids, recorder.named("orders create"), strict=True
    ):
        pattern = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-[0-9a-f]{{2}}"
        assert re.fullmatch(pattern, attributes["googclient_traceparent"])
        assert (span.attributes or {})["messaging.message.id"] == message_id


HEDGED = "publish start (hedged)"


DENIED = Status("PERMISSION_DENIED", attempts=[0], after=0.6)


@both_kinds
@pytest.mark.parametrize(
    ("faults", "official_faults", "events", "attempt"),
    [
        ([Stall(30, attempts=[0])], [], [HEDGED, "publish end (hedged)"], 1),
        ([Stall(30, attempts=[0, 1])], [], [HEDGED, HEDGED, "publish end (hedged)"], 2),
        ([Stall(0.6, attempts=[0]), Stall(30)], [], [HEDGED, "publish end"], 0),
        ([DENIED, Stall(30)], [DENIED], [HEDGED, "exception"], 1),
    ],
    ids=["rescued", "rescued_late", "answered_first", "lost"],
)
def test_what_hedging_adds(
    server: PubSubServer,
    recorder: Recorder,
    make: Make,
    faults: list[Fault],
    official_faults: list[Fault],
    events: list[str],
    attempt: int,
) -> None:
    """Events on the create spans and the attempt's number on the RPC span, and nothing else."""
    hedges = events.count(HEDGED)
    publisher = make(tokens=hedges, batch_settings=TOGETHER, publisher_options=TRACED)
    client = PublisherClient(TOGETHER, TRACED)
    official = spans_of(client, a_batch, server, recorder, official_faults)
    hedged = spans_of(publisher, a_batch, server, recorder, faults)
    for span in hedged:
        if span["name"] == "orders create":
            assert [name for name, _ in span["events"]] == ["publish start", *events]
            attempts = [more["attempt"] for name, more in span["events"] if name == HEDGED]
            assert attempts == list(range(1, hedges + 1))
        elif span["name"] == "orders publish":
            assert span["attributes"].pop("gcp_pubsub.publish.attempt") == attempt
        span["events"] = [
            (name.removesuffix(" (hedged)"), more)
            for name, more in span["events"]
            if name != HEDGED
        ]
    assert hedged == official


def test_too_few_ids_leave_no_span_open(
    server: PubSubServer, recorder: Recorder, make: Make
) -> None:
    """All spans of a batch that failed so end with the error; officially some never end."""
    publisher = make(publisher_options=TRACED)
    server.set_script(FaultScript(faults=[TooFewIds()]))
    publisher.publish(TOPIC, b"data").exception(timeout=5)
    for name in ("orders create", "orders publish"):
        (span,) = recorder.named(name)
        assert not span.status.is_ok
        assert span.end_time


def test_a_batch_that_is_sent_when_the_interpreter_ends_has_its_spans(
    recorder: Recorder, make: Make
) -> None:
    """Where no thread can be started any more, what is sent on this one is traced all the same."""
    publisher = make(
        tokens=0, batch_settings=BatchSettings(max_latency=60), publisher_options=TRACED
    )
    future = publisher.publish(TOPIC, b"data")
    assert publisher._sender is not None
    (batch,) = publisher._sender.hold_back()
    assert publisher._sender.driver.send_and_wait(batch, time.monotonic() + 5)
    assert future.result(timeout=0)
    assert len(recorder.named("orders publish")) == len(recorder.named("orders create")) == 1


@pytest.mark.usefixtures("recorder")
def test_without_tracing_nothing_of_it_is_touched(
    server: PubSubServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tracing off a message passes without OpenTelemetry, hedged or failed."""
    publisher = make(tokens=1)
    touched: list[str] = []

    def note(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def touch(*args: Any, **arguments: Any) -> Any:
            touched.append(name)
            return original(*args, **arguments)

        monkeypatch.setattr(owner, name, touch)

    note(PublishMessageWrapper, "__init__")
    for name in ("get_tracer", "get_current_span", "use_span"):
        note(trace, name)
    for name in ("attach", "get_current"):
        note(context, name)
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0], topic=TOPIC)]))
    publisher.publish(TOPIC, b"data").result(timeout=5)
    publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)
    wait_until(lambda: publisher.hedging_stats().attempts_cancelled == 1)
    assert touched == []
    assert server.messages()[0].attributes == ()
