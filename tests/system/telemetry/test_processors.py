"""Span processors that behave badly: they are a user's code, and publishes go on."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from google.cloud.pubsub_v1.publisher.exceptions import MessageTooLargeError
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from hedged_pubsub.testing import FaultScript, PubSubServer, Stall

from ..conftest import ONE_MESSAGE, TOPIC, Make, wait_until
from .conftest import Recorder

TRACED = PublisherOptions(enable_open_telemetry_tracing=True)


class Misbehave(SpanProcessor):
    """Calls a function when a span of that name starts, or ends."""

    def __init__(self, moment: str, name: str, do: Callable[[], object]) -> None:
        self._when = (moment, name)
        self._do = do

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if self._when == ("start", span.name):
            self._do()

    def on_end(self, span: ReadableSpan) -> None:
        if self._when == ("end", span.name):
            self._do()


def fail() -> None:
    """Raise what a processor may raise."""
    raise ZeroDivisionError("of the processor")


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Return what a slow processor waits for; it is set with the end of the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("moment", ["start", "end"])
@pytest.mark.parametrize(
    "name", ["orders create", "publisher flow control", "publisher batching", "orders publish"]
)
def test_a_processor_that_raises(
    server: PubSubServer,
    recorder: Recorder,
    make: Make,
    caplog: pytest.LogCaptureFixture,
    moment: str,
    name: str,
) -> None:
    """Messages are stored, and hedged if they are slow; the error is logged, once a message."""
    waits = BatchSettings(max_latency=60)
    publisher = make(tokens=1, batch_settings=waits, publisher_options=TRACED)
    recorder.clear()
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
    with recorder.also(Misbehave(moment, name, fail)), caplog.at_level(logging.ERROR):
        futures = [publisher.publish(TOPIC, b"data") for _ in range(3)]
        publisher.flush(timeout=5)
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


@pytest.mark.parametrize("span", ["flow control", "batching"])
def test_a_processor_that_raises_for_a_refused_message(
    server: PubSubServer, recorder: Recorder, make: Make, span: str
) -> None:
    """The caller gets the refusal, not the processor's error, and the create span ends."""
    publisher = make(publisher_options=TRACED)
    with recorder.also(Misbehave("start", f"publisher {span}", fail)):
        with pytest.raises(MessageTooLargeError):
            publisher.publish(TOPIC, b"x" * 10_000_001)
    (create,) = recorder.named("orders create")
    assert not create.status.is_ok


def test_a_processor_that_exits(recorder: Recorder, make: Make) -> None:
    """Not even ``SystemExit`` keeps a message from its result."""
    publisher = make(publisher_options=TRACED)
    with recorder.also(Misbehave("end", "orders publish", sys.exit)):
        assert publisher.publish(TOPIC, b"data").result(timeout=5)


@pytest.mark.parametrize(
    ("moment", "name", "settings"),
    [
        ("end", "orders create", ONE_MESSAGE),
        ("end", "orders publish", ONE_MESSAGE),
        ("start", "orders publish", ONE_MESSAGE),  # ``publish()`` completes the batch
        ("start", "orders publish", BatchSettings(max_latency=0.1)),
    ],
    ids=["create", "publish", "start of a full batch", "start of one that waited"],
)
def test_a_processor_that_is_slow(
    server: PubSubServer,
    recorder: Recorder,
    make: Make,
    release: threading.Event,
    moment: str,
    name: str,
    settings: BatchSettings,
) -> None:
    """Only the messages whose spans it sees wait for it: no others, no hedge, no ``publish()``."""
    other = server.create_topic("other")
    publisher = make(batch_settings=settings, publisher_options=TRACED)
    for _ in range(10):  # earns a token
        publisher.publish(other, b"warm-up")
        publisher.flush(timeout=5)
    with recorder.also(Misbehave(moment, name, partial(release.wait, 20))):
        slow = publisher.publish(TOPIC, b"data")
        if moment == "end":
            wait_until(lambda: server.messages("orders"))
        for faults in ([], [Stall(30, attempts=[0], topic="other")]):
            server.set_script(FaultScript(faults=faults))
            publisher.publish(other, b"data").result(timeout=5)
        assert not slow.done()
        release.set()
        assert slow.result(timeout=5)
