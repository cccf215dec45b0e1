"""OpenTelemetry spans: those of the official client, and what hedging adds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.api_core.retry import Retry
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.open_telemetry.publish_message_wrapper import PublishMessageWrapper
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)
from opentelemetry import context, trace

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status, TooFewIds

from ..conftest import FAST, ONE_MESSAGE, MakePublisher, wait_until
from .conftest import Recorder
from .spans import Described, describe

TRACED = PublisherOptions(
    enable_open_telemetry_tracing=True,
    flow_control=PublishFlowControl(
        message_limit=2, byte_limit=20_000_000, limit_exceeded_behavior=LimitExceededBehavior.ERROR
    ),
)
"""Tracing is on, and there is room for two messages."""

TOGETHER = BatchSettings(max_latency=0.3)
"""What is published in one go is one batch, even on a busy machine."""

Scenario = Callable[[pubsub_v1.PublisherClient, PubSubServer], object]


def a_batch(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """Two messages are stored."""
    topic = server.topic_path("orders")
    futures = [publisher.publish(topic, b"data", colour="blue") for _ in range(2)]
    for future in futures:
        future.result(timeout=5)


def within_a_span(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """A program publishes within a span of its own, and completes a batch."""
    with trace.get_tracer("shop").start_as_current_span("order"):
        future = publisher.publish(server.topic_path("orders"), b"data")
    future.result(timeout=5)


def no_topic(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """The message fails at once."""
    publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)


def no_success_in_time(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """The message fails after retries."""
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE")]))
    retry = Retry(initial=0.01, maximum=0.01, timeout=0.2)
    publisher.publish(server.topic_path("orders"), b"data", retry=retry).exception(timeout=5)


def no_room(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """Flow control refuses the third message."""
    server.set_script(FaultScript(latency=Fixed(0.1)))
    futures = [publisher.publish(server.topic_path("orders"), b"data") for _ in range(3)]
    for future in futures:
        future.exception(timeout=5)


def too_large(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """The message is refused."""
    with pytest.raises(MessageTooLargeError):
        publisher.publish(server.topic_path("orders"), b"x" * 10_000_001)


def stopped(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """The publisher takes no more messages."""
    publisher.stop()
    with pytest.raises(RuntimeError):
        publisher.publish(server.topic_path("orders"), b"data")


def spans_of(
    publisher: pubsub_v1.PublisherClient,
    scenario: Scenario,
    server: PubSubServer,
    recorder: Recorder,
) -> list[Described]:
    """Run a scenario and describe its spans."""
    recorder.clear()
    server.clear()
    server.set_script(FaultScript())
    scenario(publisher, server)
    publisher.transport.close()
    return describe(recorder.spans())


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    "scenario",
    [a_batch, within_a_span, no_topic, no_success_in_time, no_room, too_large, stopped],
    ids=lambda scenario: scenario.__name__,
)
def test_spans_are_those_of_the_official_client(
    server: PubSubServer, recorder: Recorder, scenario: Scenario
) -> None:
    """Names, kinds, parents, links, attributes, events and status of all spans are the same."""
    settings = ONE_MESSAGE if scenario is within_a_span else TOGETHER
    official = spans_of(pubsub_v1.PublisherClient(settings, TRACED), scenario, server, recorder)
    hedged = spans_of(
        HedgedPublisher(settings, TRACED, hedging_settings=FAST), scenario, server, recorder
    )
    assert hedged == official
    assert hedged


def test_the_trace_context_in_the_message(
    server: PubSubServer, topic: str, recorder: Recorder
) -> None:
    """A message has the attributes that it has officially: its own, and its create span's."""
    attributes: list[dict[str, str]] = []
    for publisher_class in (pubsub_v1.PublisherClient, HedgedPublisher):
        with publisher_class(ONE_MESSAGE, TRACED) as publisher:
            publisher.publish(topic, b"data", colour="blue").result(timeout=5)
        attributes.append(dict(server.messages()[-1].attributes))
    official, hedged = attributes
    assert hedged.keys() == official.keys() == {"colour", "googclient_traceparent"}
    for found, span in zip(attributes, recorder.named("orders create"), strict=True):
        pattern = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-[0-9a-f]{{2}}"
        assert re.fullmatch(pattern, found["googclient_traceparent"])


def rescued(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """The original stalls, so that a hedge is answered."""
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
    a_batch(publisher, server)


def overtaken(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """A hedge is sent and the original is answered all the same."""
    server.set_script(FaultScript(faults=[Stall(0.6, attempts=[0]), Stall(30, attempts=[1, 2, 3])]))
    a_batch(publisher, server)


def lost(publisher: pubsub_v1.PublisherClient, server: PubSubServer) -> None:
    """A hedge is sent and the original fails for good."""
    server.set_script(
        FaultScript(faults=[Status("PERMISSION_DENIED", attempts=[0], after=0.6), Stall(30)])
    )
    publisher.publish(server.topic_path("orders"), b"data").exception(timeout=5)


@pytest.mark.parametrize(
    ("scenario", "official_scenario", "events", "attempt"),
    [
        (rescued, a_batch, ["publish start (hedged)", "publish end (hedged)"], 1),
        (overtaken, a_batch, ["publish start (hedged)", "publish end"], 0),
        (lost, lost, ["publish start (hedged)", "exception"], 1),
    ],
    ids=["rescued", "overtaken", "lost"],
)
def test_what_hedging_adds(
    server: PubSubServer,
    recorder: Recorder,
    make_publisher: MakePublisher,
    scenario: Scenario,
    official_scenario: Scenario,
    events: list[str],
    attempt: int,
) -> None:
    """Events on the create spans and the attempt's number on the RPC span, and nothing else."""
    publisher = make_publisher(tokens=1, batch_settings=TOGETHER, publisher_options=TRACED)
    official = spans_of(
        pubsub_v1.PublisherClient(TOGETHER, TRACED), official_scenario, server, recorder
    )
    hedged = spans_of(publisher, scenario, server, recorder)
    for span in hedged:
        if span.name == "orders create":
            assert [name for name, _ in span.events] == ["publish start", *events]
            assert span.events[1][1] == (("attempt", "1"), ("timestamp", "…"))
        elif span.name == "orders publish":
            assert ("gcp_pubsub.publish.attempt", str(attempt)) in span.attributes
    assert [without_additions(span) for span in hedged] == official


def without_additions(span: Described) -> Described:
    """Return a span as it were without hedging."""
    return replace(
        span,
        attributes=tuple(pair for pair in span.attributes if "attempt" not in pair[0]),
        events=tuple(
            (name.removesuffix(" (hedged)"), attributes)
            for name, attributes in span.events
            if name != "publish start (hedged)"
        ),
    )


def test_each_hedge_is_an_event(
    server: PubSubServer, topic: str, recorder: Recorder, make_publisher: MakePublisher
) -> None:
    """Two hedges are two events, and the RPC span names the one that was answered."""
    publisher = make_publisher(tokens=2, publisher_options=TRACED)
    recorder.clear()
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0, 1])]))
    publisher.publish(topic, b"data").result(timeout=5)
    (create,) = recorder.named("orders create")
    hedges = [event for event in create.events if event.name == "publish start (hedged)"]
    assert [(event.attributes or {})["attempt"] for event in hedges] == [1, 2]
    (rpc,) = recorder.named("orders publish")
    assert (rpc.attributes or {})["gcp_pubsub.publish.attempt"] == 2


def test_too_few_ids_leave_no_span_open(
    server: PubSubServer, topic: str, recorder: Recorder, make_publisher: MakePublisher
) -> None:
    """All spans of a batch that failed so end with the error; officially some never end."""
    publisher = make_publisher(tokens=0, publisher_options=TRACED)
    server.set_script(FaultScript(faults=[TooFewIds()]))
    publisher.publish(topic, b"data").exception(timeout=5)
    for name in ("orders create", "orders publish"):
        (span,) = recorder.named(name)
        assert not span.status.is_ok
        assert span.end_time


def test_a_batch_that_is_sent_when_the_interpreter_ends_has_its_spans(
    topic: str, recorder: Recorder, make_publisher: MakePublisher
) -> None:
    """Where no thread can be started any more, what is sent on this one is traced all the same."""
    publisher = make_publisher(
        tokens=0, batch_settings=BatchSettings(max_latency=60), publisher_options=TRACED
    )
    future = publisher.publish(topic, b"data")
    assert publisher._pipeline is not None
    publisher._pipeline._batcher.send_last(on_this_thread=True, deadline=time.monotonic() + 5)
    assert future.result(timeout=0)
    assert len(recorder.named("orders publish")) == len(recorder.named("orders create")) == 1


@pytest.mark.usefixtures("recorder")
def test_without_tracing_nothing_of_it_is_touched(
    server: PubSubServer,
    topic: str,
    make_publisher: MakePublisher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With tracing off a message passes without OpenTelemetry, hedged or failed."""
    publisher = make_publisher(tokens=1)
    touched: list[str] = []

    def forbid(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def touch(*args: Any, **arguments: Any) -> Any:
            touched.append(name)
            return original(*args, **arguments)

        monkeypatch.setattr(owner, name, touch)

    forbid(PublishMessageWrapper, "__init__")
    for name in ("get_tracer", "get_current_span", "use_span"):
        forbid(trace, name)
    for name in ("attach", "get_current"):
        forbid(context, name)
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0], topic=topic)]))
    publisher.publish(topic, b"data").result(timeout=5)
    publisher.publish(server.topic_path("missing"), b"data").exception(timeout=5)
    wait_until(lambda: publisher.hedging_stats().attempts_cancelled == 1)
    assert touched == []
    assert server.messages()[0].attributes == ()
