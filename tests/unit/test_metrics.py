"""The metrics of a process, read by OpenTelemetry's own SDK."""

from __future__ import annotations

import gc
import itertools
import logging
import time
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import Histogram, Meter, NoOpHistogram, NoOpMeter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import hedged_pubsub._google.metrics
from hedged_pubsub._core.batching import Batch
from hedged_pubsub._core.events import ORIGINAL, Call, Event, Failed, Order, Succeeded
from hedged_pubsub._core.runs import WOKE, Runs
from hedged_pubsub._core.settings import HedgingSettings
from hedged_pubsub._core.stats import COUNTS
from hedged_pubsub._google.metrics import (
    BLOCKED,
    COUNTERS,
    DELAY,
    DURATION,
    OLDEST,
    TOKENS,
    WAITING,
    Metrics,
)

from .fakes import refuse

ORDERS = "projects/shop/topics/orders"
BILLS = "projects/shop/topics/bills"
BATCHES = COUNTERS["batches"].name
TOPIC_ATTRIBUTES = {
    "messaging.system": "gcp_pubsub",
    "messaging.destination.name": "orders",
    "gcp.project_id": "shop",
}


class Publisher:
    """As much of a publisher's driver as the metrics see, and somebody who publishes with it."""

    def __init__(self, metrics: Metrics) -> None:
        self.runs: Runs[Batch] = Runs(HedgingSettings(hedge_delay=1.0, refill_ratio=0.1))
        self.durations = self.runs.durations = metrics.watch(self, self.runs.topics)

    def publish(
        self, topic: str, seconds: float = 0.01, *, outcome: object = "original"
    ) -> list[Order]:
        """Publish a batch that is answered by the original or by a hedge, or fails."""
        batch = Batch(topic, 600.0, has_extras=False)
        self.runs.commit(batch, 0.0)
        self.runs.is_wanted(batch, ORIGINAL, 0.0, is_logged=False)
        event: Event = Succeeded(ORIGINAL)
        if isinstance(outcome, Exception):
            event = Failed(ORIGINAL, outcome)
        elif outcome != "original":
            event = Succeeded(1)
            batch.run.topic.bucket.put_back()
            self.runs.handle(batch, WOKE, 1.0)
            self.runs.is_wanted(batch, 1, 1.0, is_logged=False)
        return list(self.runs.handle(batch, event, seconds))


class Collected:
    """A reader, and the metrics that it reads."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        provider = MeterProvider([self._reader])
        self.metrics = Metrics(lambda: provider)

    def metric(self, name: str) -> Any:
        """Collect, and return a metric, if it has been counted."""
        data = self._reader.get_metrics_data()
        scopes = (one.scope_metrics for one in (data.resource_metrics if data else ()))
        metrics = (one.metrics for one in itertools.chain.from_iterable(scopes))
        found = {metric.name: metric for metric in itertools.chain.from_iterable(metrics)}
        return found.get(name)

    def values(self, name: str) -> dict[str, float]:
        """Collect, and return a metric's value for each destination."""
        metric = self.metric(name)
        points = metric.data.data_points if metric else ()
        return {point.attributes["messaging.destination.name"]: point.value for point in points}


@pytest.fixture
def collected() -> Collected:
    """Collect into memory."""
    return Collected()


@pytest.fixture
def publisher(collected: Collected) -> Publisher:
    """Make a publisher whose numbers are collected."""
    return Publisher(collected.metrics)


def test_a_counter_is_the_number_of_the_statistics(
    collected: Collected, publisher: Publisher
) -> None:
    """Cumulative, monotonic, with the unit and the topic that the conventions want."""
    assert tuple(COUNTERS) == COUNTS
    publisher.publish(ORDERS)
    for value, count in enumerate(COUNTS, 7):
        setattr(publisher.runs.topics[ORDERS], count, value)
        metric = collected.metric(COUNTERS[count].name)
        assert (metric.unit, metric.description) == COUNTERS[count][1:]
        assert metric.data.is_monotonic
        (point,) = metric.data.data_points
        assert (point.value, dict(point.attributes)) == (value, TOPIC_ATTRIBUTES)


def test_publishers_add_up(collected: Collected, publisher: Publisher) -> None:
    """Two of one process, topic by topic, of whatever name; tokens are a gauge."""
    second = Publisher(collected.metrics)
    publisher.publish(ORDERS)
    for topic in (ORDERS, BILLS, "_deleted-topic_"):
        second.publish(topic)
    assert collected.values(BATCHES) == {"orders": 2, "bills": 1, "_deleted-topic_": 1}
    assert collected.values(TOKENS) == {"orders": 0.2, "bills": 0.1, "_deleted-topic_": 0.1}


def test_a_dropped_publisher_is_forgotten_and_its_counts_are_not(collected: Collected) -> None:
    """A counter that falls would be taken for a restart by whoever reads it; tokens are gone."""
    dropped, other = Publisher(collected.metrics), Publisher(collected.metrics)
    dropped.publish(ORDERS)
    other.publish(BILLS)
    state = weakref.ref(dropped)
    del dropped
    gc.collect()
    assert state() is None
    for _ in range(2):
        assert collected.values(BATCHES) == {"orders": 1, "bills": 1}
        assert collected.values(TOKENS) == {"bills": 0.1}
    for _ in range(100):  # and where nobody collects
        Publisher(collected.metrics).publish(ORDERS)
    assert len(collected.metrics._live) <= 3
    assert collected.metrics._kept[ORDERS]["batches"] >= 98


def test_very_many_topics_are_one_series(
    collected: Collected, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those beyond the bound, with the SDK's own attribute for it; the totals are all there."""
    monkeypatch.setattr(hedged_pubsub._google.metrics, "MAX_TOPICS", 2)
    dropped = Publisher(collected.metrics)
    for topic in (ORDERS, BILLS):
        publisher.publish(topic)
        collected.values(BATCHES)
    for number in range(5):
        publisher.publish(f"projects/shop/topics/tenant-{number}")
        dropped.publish(f"projects/shop/topics/tenant-{number + 3}", 0.25)
    others = frozenset({("messaging.system", "gcp_pubsub"), ("otel.metric.overflow", True)})

    def value(name: str) -> Any:
        points = collected.metric(name).data.data_points
        by_attributes = {frozenset(point.attributes.items()): point for point in points}
        assert len(by_attributes) == 3
        return by_attributes[others].value

    assert value(BATCHES) == 10
    assert value(TOKENS) == pytest.approx(1.0)
    assert value(DELAY) == 1.0
    del dropped
    gc.collect()
    assert value(BATCHES) == 10
    assert value(TOKENS) == pytest.approx(0.5)
    assert len(collected.metrics._kept) == 1
    last = collected.metric(DURATION).data.data_points[-1]
    assert (last.count, last.attributes["otel.metric.overflow"]) == (10, True)
    assert last.attributes["hedged_pubsub.outcome"] == "original"


def test_durations_by_outcome(collected: Collected, publisher: Publisher) -> None:
    """Answered by the original, by a hedge, or failed with this kind of error; in seconds."""
    publisher.publish(ORDERS, 0.02)
    publisher.publish(ORDERS, 0.03)
    publisher.publish(ORDERS, 1.25, outcome="hedge")
    publisher.publish(ORDERS, 2.0, outcome=KeyError())
    common = TOPIC_ATTRIBUTES | {
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }
    metric = collected.metric(DURATION)
    points = metric.data.data_points
    assert [(dict(point.attributes), point.count, point.sum) for point in points] == [
        (common | {"hedged_pubsub.outcome": "original"}, 2, 0.05),
        (common | {"hedged_pubsub.outcome": "hedge"}, 1, 1.25),
        (common | {"hedged_pubsub.outcome": "failed", "error.type": "KeyError"}, 1, 2.0),
    ]
    assert metric.unit == "s"
    # The SDK's own buckets are made for milliseconds.
    assert [points[0].explicit_bounds[end] for end in (0, -1)] == [0.005, 10]


def test_the_oldest_supported_api_takes_no_buckets() -> None:
    """There, the histogram is made without them; a view can set them."""
    made: list[str] = []

    class OldMeter(NoOpMeter):
        def create_histogram(  # type: ignore[override]
            self, name: str, unit: str = "", description: str = ""
        ) -> Histogram:
            made.append(name)
            return NoOpHistogram(name, unit, description)

    class OldProvider(NoOpMeterProvider):
        def get_meter(self, name: str, *_: Any, **__: Any) -> Meter:
            return OldMeter(name)

    Publisher(Metrics(OldProvider))
    assert made == [DURATION]


def test_durations_are_recorded_in_bulk(collected: Collected, publisher: Publisher) -> None:
    """Not on the thread where a batch is decided, and long before there are too many."""
    for _ in range(127):
        assert len(publisher.publish(ORDERS)) == 1
    _, record = publisher.publish(ORDERS)
    assert isinstance(record, Call)
    assert len(collected.metrics._durations) == 128
    record.function()
    assert len(collected.metrics._durations) == 0
    assert collected.metric(DURATION).data.data_points[0].count == 128


def test_without_a_meter_provider_no_durations_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    """Those that the API itself has do nothing; one that fails is logged, and harms nothing."""
    for get in (NoOpMeterProvider, lambda: metrics._internal._PROXY_METER_PROVIDER):
        assert Publisher(Metrics(get)).durations is None
    assert not caplog.records
    assert Publisher(Metrics(refuse(OSError("no such provider")))).durations is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_histogram_that_fails_harms_nothing(
    collected: Collected, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    """What it does not take is dropped, or it would grow."""
    collected.metrics._histogram = SimpleNamespace(record=refuse(OSError("full")))  # type: ignore[assignment]
    for _ in range(10):
        publisher.publish(ORDERS)
    collected.metrics.record()
    assert len(collected.metrics._durations) == 0
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_forked_child_starts_with_zero(collected: Collected, publisher: Publisher) -> None:
    """Neither what live publishers counted nor what is left of dropped ones is the child's."""
    dropped = Publisher(collected.metrics)
    publisher.publish(ORDERS)
    dropped.publish(BILLS)
    del dropped
    Publisher(collected.metrics)
    collected.metrics.reset_after_fork()
    assert collected.values(BATCHES) == {}
    assert collected.metric(DURATION) is None
    publisher.publish(ORDERS)
    assert collected.values(BATCHES) == {"orders": 1}


def test_what_waits_is_a_gauge(collected: Collected) -> None:
    """Messages by topic and the oldest of them, publishes that are blocked, and the hedge delay."""

    class Waits:
        def __init__(self) -> None:
            self.undecided: set[Any] = set()
            self.blocked = 3

    publisher, waits = Publisher(collected.metrics), Waits()
    collected.metrics.watch(waits, {}, waits)
    publisher.publish(ORDERS)
    for topic, count, age in ((ORDERS, 2, 5.0), (ORDERS, 1, 60.0), (BILLS, 4, 0.0)):
        batch = Batch(topic, 600.0, has_extras=False)
        batch.count, batch.publish_start_time = count, time.time() - age
        waits.undecided.add(batch)
    waits.undecided.add(Batch(BILLS, 600.0, has_extras=False))
    assert collected.values(WAITING) == {"orders": 3, "bills": 4}
    ages = collected.values(OLDEST)
    assert ages == {"orders": pytest.approx(60, abs=30), "bills": pytest.approx(0, abs=30)}
    assert collected.values(DELAY) == {"orders": 1.0}
    (point,) = collected.metric(BLOCKED).data.data_points
    assert point.value == 3
    del waits, point
    gc.collect()
    assert collected.values(WAITING) == {"orders": 0}
