"""The metrics of a process, read by OpenTelemetry's own SDK."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.metrics import Histogram, Meter, NoOpHistogram, NoOpMeter, NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from hedged_pubsub.events import (
    ORIGINAL_SUCCEEDED,
    RESOLVE_ORIGINAL,
    Cancel,
    Fail,
    Failed,
    Resolve,
    Succeeded,
)
from hedged_pubsub.observability import COUNTERS, DURATION, TOKENS, Metrics
from hedged_pubsub.settings import HedgingSettings
from hedged_pubsub.stats import COUNTS
from hedged_pubsub.topic_state import Course, Durations, TopicState

ORDERS = "projects/shop/topics/orders"
BILLS = "projects/shop/topics/bills"

Point = tuple[float | int, dict[str, Any]]


class Publisher:
    """As much of a publisher's driver as the metrics see, and somebody who publishes with it."""

    def __init__(self, metrics: Metrics) -> None:
        self.topics: dict[str, TopicState] = {}
        self.durations: Durations | None = metrics.watch(self, self.topics)

    def state(self, topic: str) -> TopicState:
        """Return what is counted of a topic."""
        if topic not in self.topics:
            self.topics[topic] = TopicState(topic, HedgingSettings(), durations=self.durations)
        return self.topics[topic]

    def publish(self, topic: str, seconds: float, *, error: Exception | None = None) -> None:
        """Publish a batch that is answered, or fails, after some seconds."""
        state, course = self.state(topic), Course()
        state.batches += 1
        state.attempts += 1
        if error is None:
            state.bucket.refill()
            state.count(course, ORIGINAL_SUCCEEDED, [RESOLVE_ORIGINAL], seconds, seconds)
        else:
            state.count(course, Failed(0, error), [Fail(error)], None, seconds)

    def publish_hedged(self, topic: str, seconds: float) -> None:
        """Publish a batch that is saved by a hedge."""
        state, course = self.state(topic), Course()
        state.batches += 1
        state.attempts += 2
        state.hedge_sent(course, 1, 1.0, logged=False)
        state.count(course, Succeeded(1), [Cancel(0), Resolve(1)], seconds, seconds)
        state.attempts_cancelled += 1


class Collected:
    """A reader, and the metrics that it reads."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])
        self.metrics = Metrics(lambda: self.provider)

    def by_name(self) -> dict[str, Any]:
        """Collect, and return what was collected."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def values(self, name: str) -> dict[str, float]:
        """Collect, and return a metric's value for each destination."""
        metric = self.by_name().get(name)
        points = [] if metric is None else metric.data.data_points
        return {point.attributes["messaging.destination.name"]: point.value for point in points}

    def durations(self) -> list[tuple[dict[str, Any], int, float]]:
        """Collect, and return attributes, count and sum of the durations."""
        metric = self.by_name().get(DURATION)
        points = [] if metric is None else metric.data.data_points
        return [(dict(point.attributes), point.count, point.sum) for point in points]


@pytest.fixture
def collected() -> Collected:
    """Collect into memory."""
    return Collected()


def test_every_count_is_exported() -> None:
    """A number that is added to the statistics does not go missing here."""
    assert tuple(COUNTERS) == COUNTS


@pytest.mark.parametrize("count", COUNTS)
def test_a_counter_is_the_number_of_the_statistics(collected: Collected, count: str) -> None:
    """Cumulative, monotonic, with the unit and the topic that the conventions want."""
    publisher = Publisher(collected.metrics)
    setattr(publisher.state(ORDERS), count, 7)
    metric = collected.by_name()[COUNTERS[count].name]
    assert metric.unit == COUNTERS[count].unit
    assert metric.description == COUNTERS[count].description
    assert metric.data.is_monotonic
    (point,) = metric.data.data_points
    assert point.value == 7
    assert dict(point.attributes) == {
        "messaging.system": "gcp_pubsub",
        "messaging.destination.name": "orders",
        "gcp.project_id": "shop",
    }


def test_tokens_are_a_gauge(collected: Collected) -> None:
    """They rise and fall."""
    publisher = Publisher(collected.metrics)
    for _ in range(5):
        publisher.publish(ORDERS, 0.01)
    assert collected.values(TOKENS) == {"orders": 0.5}


def test_publishers_add_up(collected: Collected) -> None:
    """Two of one process, topic by topic."""
    first, second = Publisher(collected.metrics), Publisher(collected.metrics)
    first.publish(ORDERS, 0.01)
    second.publish(ORDERS, 0.01)
    second.publish(BILLS, 0.01)
    assert collected.values("hedged_pubsub.batches.committed") == {"orders": 2, "bills": 1}
    assert collected.values(TOKENS) == {"orders": 0.2, "bills": 0.1}


def test_a_dropped_publisher_is_forgotten_and_its_counts_are_not(collected: Collected) -> None:
    """A counter that falls looks like a restart to whoever reads it; tokens are gone."""
    publisher, other = Publisher(collected.metrics), Publisher(collected.metrics)
    publisher.publish(ORDERS, 0.01)
    other.publish(BILLS, 0.01)
    state = weakref.ref(publisher)
    del publisher
    gc.collect()
    assert state() is None
    for _ in range(2):
        assert collected.values("hedged_pubsub.batches.committed") == {"orders": 1, "bills": 1}
        assert collected.values(TOKENS) == {"bills": 0.1}
    assert len(collected.metrics._live) == 1


def test_dropped_publishers_take_no_memory_where_nobody_collects() -> None:
    """Each new one takes along what those before it have left."""
    metrics = Metrics()
    for _ in range(100):
        publisher = Publisher(metrics)
        publisher.publish(ORDERS, 0.01)
        del publisher
    assert len(metrics._live) <= 2
    assert metrics._kept[ORDERS]["batches"] >= 98


def test_durations_by_outcome(collected: Collected) -> None:
    """Answered by the original, by a hedge, or failed with this kind of error."""
    publisher = Publisher(collected.metrics)
    publisher.publish(ORDERS, 0.02)
    publisher.publish(ORDERS, 0.03)
    publisher.publish_hedged(ORDERS, 1.25)
    publisher.publish(ORDERS, 2.0, error=KeyError())
    common = {
        "messaging.system": "gcp_pubsub",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "gcp.project_id": "shop",
    }
    assert collected.durations() == [
        (common | {"hedged_pubsub.outcome": "original"}, 2, 0.05),
        (common | {"hedged_pubsub.outcome": "hedge"}, 1, 1.25),
        (common | {"hedged_pubsub.outcome": "failed", "error.type": "KeyError"}, 1, 2.0),
    ]


def test_the_duration_is_in_seconds_and_so_are_its_buckets(collected: Collected) -> None:
    """The SDK's own buckets are made for milliseconds."""
    publisher = Publisher(collected.metrics)
    publisher.publish(ORDERS, 0.02)
    metric = collected.by_name()[DURATION]
    (point,) = metric.data.data_points
    assert metric.unit == "s"
    assert point.explicit_bounds[0] == 0.005
    assert point.explicit_bounds[-1] == 10


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


def test_durations_are_recorded_in_bulk(collected: Collected) -> None:
    """Not on the thread where a batch is decided, and long before there are too many."""
    publisher = Publisher(collected.metrics)
    state = publisher.state(ORDERS)
    for _ in range(127):
        publisher.publish(ORDERS, 0.01)
    assert state.due == []
    publisher.publish(ORDERS, 0.01)
    (record,) = state.due
    assert len(collected.metrics._durations) == 128
    record()
    assert len(collected.metrics._durations) == 0
    assert collected.durations()[0][1] == 128


@pytest.mark.parametrize("provider", [NoOpMeterProvider(), metrics._internal._PROXY_METER_PROVIDER])
def test_without_a_meter_provider_no_durations_are_noted(provider: Any) -> None:
    """Those that the API itself has do nothing."""
    assert Publisher(Metrics(lambda: provider)).durations is None


def test_a_meter_provider_that_fails_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The publisher is made; the log says that there are no metrics."""

    def fail() -> MeterProvider:
        raise OSError("no such provider")

    with caplog.at_level(logging.ERROR):
        publisher = Publisher(Metrics(fail))
    assert publisher.durations is None
    assert "metrics are not exported" in caplog.text


def test_a_histogram_that_fails_harms_nothing(
    collected: Collected, caplog: pytest.LogCaptureFixture
) -> None:
    """What it does not take is dropped, or it would grow."""
    publisher = Publisher(collected.metrics)

    class Broken:
        def record(self, *_: object) -> None:
            raise OSError("full")

    collected.metrics._histogram = Broken()  # type: ignore[assignment]
    for _ in range(10):
        publisher.publish(ORDERS, 0.01)
    with caplog.at_level(logging.ERROR):
        collected.metrics.record()
    assert len(collected.metrics._durations) == 0
    assert "publishing goes on" in caplog.text


def test_a_forked_child_starts_with_zero(collected: Collected) -> None:
    """Neither what live publishers counted nor what is left of dropped ones is the child's."""
    publisher, dropped = Publisher(collected.metrics), Publisher(collected.metrics)
    publisher.publish(ORDERS, 0.01)
    dropped.publish(BILLS, 0.01)
    del dropped
    Publisher(collected.metrics)
    collected.metrics.start_anew()
    assert collected.values("hedged_pubsub.batches.committed") == {}
    assert collected.durations() == []
    publisher.publish(ORDERS, 0.01)
    assert collected.values("hedged_pubsub.batches.committed") == {"orders": 1}


def test_a_topic_of_an_unusual_name(collected: Collected) -> None:
    """Whatever the service will say about it, it is counted."""
    Publisher(collected.metrics).publish("orders", 0.01)
    publisher = Publisher(collected.metrics)
    publisher.publish("_deleted-topic_", 0.01)
    values = collected.values("hedged_pubsub.batches.committed")
    assert values == {"orders": 1, "_deleted-topic_": 1}
