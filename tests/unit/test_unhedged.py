"""Contracts with the official client's private parts that hedging off builds on, and its limits.

These run at the lowest and the newest supported releases.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.cloud.pubsub_v1.publisher._batch import thread
from google.cloud.pubsub_v1.publisher._batch.base import BatchStatus
from google.cloud.pubsub_v1.publisher._sequencer.ordered_sequencer import (
    OrderedSequencer,
    _OrderedSequencerStatus,
)
from google.cloud.pubsub_v1.publisher._sequencer.unordered_sequencer import UnorderedSequencer
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions, PublishFlowControl
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from hedged_pubsub._google.unhedged import UnhedgedPublisher

_TOPIC = "projects/test/topics/orders"
_PATIENT = BatchSettings(max_latency=float("inf"))
_PAIRS = BatchSettings(max_messages=3, max_latency=float("inf"))  # two messages a batch


class Publisher(UnhedgedPublisher):
    """A publisher whose requests are answered here; each waits until it may go on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answer: Callable[[int], list[str]] = lambda count: ["id"] * count
        self.asked, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def _close_transport(self) -> None:
        pass  # all publishers share it

    def _gapic_publish(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.set()
        assert self.go_on.wait(5)
        return types.PublishResponse(message_ids=self.answer(len(kwargs["messages"])))


MakePublisher = Callable[..., Publisher]


@pytest.fixture
def make() -> Iterator[MakePublisher]:
    """Make publishers whose server does not exist, and close them."""
    made: list[Publisher] = []
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        transport = PublisherGrpcTransport(channel=channel)

        def make_publisher(*args: Any, **kwargs: Any) -> Publisher:
            made.append(Publisher(*args, transport=transport, **kwargs))
            return made[-1]

        yield make_publisher
        for publisher in made:
            publisher.go_on.set()
            publisher.close(timeout=5)


@pytest.fixture(params=["", "key"], ids=["plain", "ordered"])
def key(request: pytest.FixtureRequest) -> Any:
    """Return an ordering key, or none."""
    return request.param


def options(key: str) -> PublisherOptions:
    """Return the options that publishing with that key needs."""
    return PublisherOptions(enable_message_ordering=bool(key))


def fail(count: int) -> list[str]:
    """Answer with an error that the official client does not know."""
    raise ZeroDivisionError


def test_the_parts_of_a_batch_and_its_sequencer(make: MakePublisher, key: str) -> None:
    """The states that a batch goes through, and how it finds the sequencer of its ordering key."""
    publisher = make(_PATIENT, options(key))
    publisher.go_on.clear()
    publisher.publish(_TOPIC, b"data", key)
    (sequencer,) = publisher._sequencers.values()
    (batch,) = publisher._undecided()
    if key:
        assert isinstance(sequencer, OrderedSequencer)
        assert list(sequencer._ordered_batches) == [batch]
        assert sequencer._state == _OrderedSequencerStatus.ACCEPTING_MESSAGES
        assert batch._sequencer is sequencer
    else:
        assert isinstance(sequencer, UnorderedSequencer)
        assert batch._sequencer is None
    assert isinstance(batch, thread.Batch)
    assert batch._status == BatchStatus.ACCEPTING_MESSAGES
    with batch._state_lock:
        assert len(batch._message_wrappers) == len(batch._futures) == 1
    publisher.stop()
    if key:
        assert sequencer._state == _OrderedSequencerStatus.STOPPED
    assert publisher.asked.wait(5)
    batch._commit()  # as a second thread does, after an interrupted start
    assert publisher._undecided() == [batch]
    publisher.go_on.set()
    publisher.flush(timeout=5)
    assert batch._status == BatchStatus.SUCCESS


@pytest.mark.parametrize("ids", [2, 1], ids=["enough", "too few"])
def test_outcomes_are_set_through_the_list_of_futures(make: MakePublisher, ids: int) -> None:
    """The official batch goes over its list to set outcomes, and over nothing else."""
    publisher = make(_PATIENT)
    publisher.answer = lambda count: ["id"] * ids
    publisher.go_on.clear()
    futures = [publisher.publish(_TOPIC, b"data") for _ in range(2)]
    (batch,) = publisher._undecided()
    futures[0].set_result("before")
    publisher.stop()
    publisher.go_on.set()
    second = futures[1].exception(timeout=5)
    assert (second is None) == (ids == 2)
    assert futures[0].result(timeout=0) == "before"
    assert batch._futures[:] == futures


def test_a_decided_batch_is_forgotten(make: MakePublisher, key: str) -> None:
    """Nothing grows with what was published; nor with what was refused."""
    publisher = make(_PAIRS, options(key))
    for _ in range(20):
        publisher.publish(_TOPIC, b"data", key)
    for _ in range(3):
        with pytest.raises(Exception, match="too large"):
            publisher.publish(_TOPIC, b"x" * 10_000_001, "another" if key else "")
    publisher.flush(timeout=5)
    for running in threading.enumerate():  # they do something after an answer, too
        if running.name.startswith("Thread-CommitBatch"):
            running.join(5)
    assert publisher._live == publisher._unsettled == {}


def test_spans_and_flow_control_end_with_an_unknown_error(
    make: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an error that the official client knows: of the messages, and of the request."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace.get_tracer", provider.get_tracer)
    flow_control = PublishFlowControl(message_limit=2)
    named = {"enable_open_telemetry_tracing": True, "flow_control": flow_control}
    publisher = make(_PATIENT, PublisherOptions(**named))
    publisher.answer = fail
    futures = [publisher.publish(_TOPIC, b"data") for _ in range(2)]
    publisher.flush(timeout=5)
    assert all(isinstance(future.exception(0), ZeroDivisionError) for future in futures)
    ended = [span for span in exporter.get_finished_spans() if span.name.startswith("orders")]
    assert sorted(span.name for span in ended) == ["orders create"] * 2 + ["orders publish"]
    assert not any(span.status.is_ok for span in ended)
    assert publisher._flow_controller._message_count == 0


def test_what_the_parent_of_a_fork_has_under_way_is_not_waited_for(
    make: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the child nobody would ever decide it."""
    publisher = make(BatchSettings(max_messages=1))
    publisher.go_on.clear()
    future = publisher.publish(_TOPIC, b"data")
    with pytest.raises(concurrent.futures.TimeoutError, match="1 of 1 messages"):
        publisher.flush(timeout=0)
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    publisher.flush(timeout=0)
    monkeypatch.undo()
    publisher.go_on.set()
    assert future.result(timeout=5)
