"""Span processors that behave badly: they are a user's code, and publishes go on."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

import pytest
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from ..conftest import ONE_MESSAGE, MakePublisher, wait_until
from .conftest import Recorder

TRACED = PublisherOptions(enable_open_telemetry_tracing=True)
TOGETHER = BatchSettings(max_messages=1000, max_latency=0.3)
_PROMPTLY = 1.2
"""Seconds, for what does not have to wait for a slow processor."""


class Misbehave(SpanProcessor):
    """Calls a function when a span of that name starts, or ends."""

    def __init__(self, moment: str, name: str, do: Callable[[], object]) -> None:
        self._moment = moment
        self._name = name
        self._do = do

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._look("start", span.name)

    def on_end(self, span: ReadableSpan) -> None:
        self._look("end", span.name)

    def _look(self, moment: str, name: str) -> None:
        if moment == self._moment and name == self._name:
            self._do()


def fail() -> None:
    """Raise what a processor may raise."""
    raise ZeroDivisionError("of the processor")


def sleep() -> None:
    """Take longer than a publish may take, by far."""
    time.sleep(2.5)


@pytest.mark.parametrize("moment", ["start", "end"])
@pytest.mark.parametrize(
    "name", ["orders create", "publisher flow control", "publisher batching", "orders publish"]
)
def test_a_processor_that_raises(
    server: PubSubServer,
    topic: str,
    recorder: Recorder,
    make_publisher: MakePublisher,
    caplog: pytest.LogCaptureFixture,
    moment: str,
    name: str,
) -> None:
    """Messages are stored, and hedged if they are slow; the error is logged, once a message."""
    publisher = make_publisher(tokens=1, batch_settings=TOGETHER, publisher_options=TRACED)
    recorder.clear()
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
    with recorder.also(Misbehave(moment, name, fail)), caplog.at_level(logging.ERROR):
        futures = [publisher.publish(topic, b"data") for _ in range(3)]
        for future in futures:
            future.result(timeout=5)
    assert publisher.hedging_stats().hedges_won == 1
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert 1 <= len(errors) <= 3
    assert all("publishing goes on" in record.getMessage() for record in errors)
    # What failed for one span is no reason to leave another one open.
    if (moment, name) != ("start", "orders create"):
        assert len(recorder.named("orders create")) == 3
    if (moment, name) != ("start", "orders publish"):
        assert len(recorder.named("orders publish")) == 1


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("span", ["flow control", "batching"])
def test_a_processor_that_raises_for_a_refused_message(
    server: PubSubServer, recorder: Recorder, make_publisher: MakePublisher, span: str
) -> None:
    """The caller gets the refusal, not the processor's error, and the create span ends."""
    publisher = make_publisher(tokens=0, publisher_options=TRACED)
    with recorder.also(Misbehave("start", f"publisher {span}", fail)):
        with pytest.raises(MessageTooLargeError):
            publisher.publish(server.topic_path("orders"), b"x" * 10_000_001)
    (create,) = recorder.named("orders create")
    assert not create.status.is_ok


def test_a_processor_that_exits(
    topic: str, recorder: Recorder, make_publisher: MakePublisher
) -> None:
    """Not even ``SystemExit`` keeps a message from its result."""
    publisher = make_publisher(tokens=0, publisher_options=TRACED)
    with recorder.also(Misbehave("end", "orders publish", sys.exit)):
        assert publisher.publish(topic, b"data").result(timeout=5)


@pytest.mark.parametrize("name", ["orders create", "orders publish"])
def test_an_exporter_that_is_slow(
    server: PubSubServer,
    topic: str,
    recorder: Recorder,
    make_publisher: MakePublisher,
    name: str,
) -> None:
    """Only the messages whose spans it exports wait for it: no others, and no hedge."""
    other = server.create_topic("other")
    publisher = make_publisher(tokens=0, batch_settings=ONE_MESSAGE, publisher_options=TRACED)
    for _ in range(10):
        publisher.publish(other, b"warm-up").result(timeout=5)
    with recorder.also(Misbehave("end", name, sleep)):
        slow = publisher.publish(topic, b"data")
        wait_until(lambda: server.messages("orders"))
        start = time.monotonic()
        publisher.publish(other, b"data").result(timeout=5)
        assert time.monotonic() - start < _PROMPTLY
        server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
        start = time.monotonic()
        publisher.publish(other, b"data").result(timeout=5)
        assert time.monotonic() - start < _PROMPTLY
        assert not slow.done()
        assert slow.result(timeout=5)


def test_a_processor_that_is_slow_at_the_start_does_not_hold_up_publish(
    topic: str, recorder: Recorder, make_publisher: MakePublisher
) -> None:
    """``publish()`` of the message that completes a batch does not start the batch's RPC span."""
    publisher = make_publisher(tokens=0, publisher_options=TRACED)
    with recorder.also(Misbehave("start", "orders publish", sleep)):
        start = time.monotonic()
        future = publisher.publish(topic, b"data")
        assert time.monotonic() - start < _PROMPTLY
        future.result(timeout=5)


def test_a_processor_that_is_slow_at_the_start_does_not_hold_up_other_topics(
    server: PubSubServer, topic: str, recorder: Recorder, make_publisher: MakePublisher
) -> None:
    """Of two batches that have waited long enough, each is sent whatever holds up the other."""
    other = server.create_topic("other")
    publisher = make_publisher(tokens=0, batch_settings=TOGETHER, publisher_options=TRACED)
    with recorder.also(Misbehave("start", "orders publish", sleep)):
        start = time.monotonic()
        slow = publisher.publish(topic, b"data")
        publisher.publish(other, b"data").result(timeout=5)
        assert time.monotonic() - start < _PROMPTLY
        slow.result(timeout=5)
