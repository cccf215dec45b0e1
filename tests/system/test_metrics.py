"""What Prometheus scrapes is what the publisher counted and what the server saw."""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.api_core import exceptions
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

import hedged_pubsub._sync.driver
import hedged_pubsub.aio.driver
from hedged_pubsub._google.metrics import COUNTERS, Metrics
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status, StoreThenStall

from .conftest import TOPIC, Make, both_kinds, wait_until
from .programs import needs_fork, run

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana-dashboard.json"
DURATION = "messaging_client_operation_duration_seconds"

COLLECT = """
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
def collected():
    return {
        metric.name: metric.data.data_points[0]
        for scope in reader.get_metrics_data().resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.data.data_points
    }
def batches():
    return collected()["hedged_pubsub.batches.committed"].value
"""
"""A program begins with this: it collects metrics into memory once a meter provider is set."""


def name_of(count: str) -> str:
    """Return a counter's name in Prometheus."""
    return COUNTERS[count].name.replace(".", "_") + "_total"


class Page:
    """The page that Prometheus reads."""

    def samples(self) -> list[Sample]:
        """Read the page, and return what is on it of this library."""
        families = text_string_to_metric_families(generate_latest().decode())
        samples = [sample for family in families for sample in family.samples]
        return [one for one in samples if one.labels.get("otel_scope_name") == "hedged_pubsub"]

    def values(self, topic: str) -> dict[str, float]:
        """Return the numbers of a topic by name."""
        return {
            sample.name: sample.value
            for sample in self.samples()
            if sample.labels.get("messaging_destination_name") == topic.rpartition("/")[2]
            and sample.name.startswith("hedged_pubsub")
        }

    def batches_by_outcome(self) -> dict[str, float]:
        """Return how many durations there are of each outcome, and of each kind of error."""
        counts: collections.Counter[str] = collections.Counter()
        for sample in self.samples():
            if sample.name == f"{DURATION}_count":
                outcome = sample.labels["hedged_pubsub_outcome"]
                error = sample.labels.get("error_type")
                counts[f"{outcome} {error}" if error else outcome] += int(sample.value)
        return dict(counts)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Export what publishers count that are made from now on."""
    provider = MeterProvider([PrometheusMetricReader()])
    exported = Metrics(lambda: provider)
    monkeypatch.setattr(hedged_pubsub._sync.driver, "METRICS", exported)
    monkeypatch.setattr(hedged_pubsub.aio.driver, "METRICS", exported)
    yield Page()
    provider.shutdown()


@both_kinds
def test_what_is_scraped_is_what_was_counted_and_what_the_server_saw(
    server: PubSubServer, make: Make, page: Page
) -> None:
    """Stuck requests, one of them after its messages were stored, and one that is refused."""
    publisher = make(tokens=5)
    before = publisher.hedging_stats(TOPIC)
    faults = [Stall(30, attempts=[0], calls=[1, 5]), StoreThenStall(30, attempts=[0], calls=[9])]
    server.set_script(FaultScript(faults=[*faults, Status("PERMISSION_DENIED", calls=[12])]))
    errors = [publisher.publish(TOPIC, b"%d" % n).exception(timeout=5) for n in range(10)]
    refused = sum(isinstance(error, exceptions.PermissionDenied) for error in errors)
    publisher.flush()
    wait_until(lambda: all(attempt.outcome != "pending" for attempt in server.attempts()))

    # The publisher and Prometheus.
    stats = publisher.hedging_stats(TOPIC)
    scraped = page.values(TOPIC)
    for count in COUNTERS:
        assert scraped[name_of(count)] == getattr(stats, count)
    assert scraped["hedged_pubsub_tokens_left"] == stats.tokens
    assert page.batches_by_outcome() == {
        "original": stats.batches - stats.hedges_won - stats.batches_failed,
        "hedge": stats.hedges_won,
        "failed PERMISSION_DENIED": refused,
    }
    assert stats.result_latency.count == stats.batches - refused
    assert stats.result_latency.p50 is not None
    assert stats.result_latency.p50 < 0.1 < (stats.result_latency.p999 or 0) < 1

    # The publisher and the server, which forgot what earned the tokens.
    attempts = server.attempts()
    outcomes = collections.Counter(attempt.outcome for attempt in attempts)
    messages = server.messages(TOPIC)
    duplicates = len(messages) - len({message.data for message in messages})
    assert stats.batches - before.batches == 10
    assert stats.attempts - before.attempts == len(attempts)
    hedges = sum(bool(attempt.attempt_number) for attempt in attempts)
    assert stats.hedges_sent == stats.hedges_won == hedges == 3
    assert stats.attempts_cancelled == outcomes["cancelled"] == 3
    assert stats.batches_failed == outcomes["failed"] == refused == 1
    assert duplicates == 1
    assert stats.possible_duplicates == 3

    # What a closed publisher has counted stays.
    publisher.close(timeout=5)
    assert page.values(TOPIC)[name_of("batches")] == stats.batches


def test_without_a_meter_provider_nothing_is_called(server: PubSubServer) -> None:
    """Neither for a message nor for a hedge, on any thread: none has begun before."""
    stalls = [Stall(30, attempts=[0], times=1, calls=range(n, n + 15)) for n in (31, 76)]
    server.set_script(FaultScript(faults=stalls))
    run(
        """
        import asyncio
        from opentelemetry import metrics
        calls = []
        def note(frame, event, _argument):
            if event == "call" and "opentelemetry" in frame.f_code.co_filename:
                calls.append(frame.f_code.co_name)
        threading.setprofile(note)
        sys.setprofile(note)
        metrics.get_meter_provider()
        assert calls == ["get_meter_provider"], "they are noted"
        async def main():
            for make in (HedgedPublisher, AsyncHedgedPublisher):
                publisher = make(settings(max_messages=1), hedging_settings=HedgingSettings(0.1))
                calls.clear()
                for number in range(45):
                    message_id = publisher.publish(topic, b"data")
                    if make is AsyncHedgedPublisher:
                        await message_id
                    else:
                        message_id.result(timeout=10)
                assert publisher.hedging_stats().hedges_won >= 1
                assert calls == []
            await publisher.close()
        asyncio.run(main())
        """
    )


def test_the_dashboard_asks_for_what_is_exported(
    server: PubSubServer, make: Make, page: Page
) -> None:
    """Every name and label in it is on the page, and everything on the page is in it."""
    publisher = make()
    publisher.publish(TOPIC, b"data").result(timeout=5)
    server.set_script(FaultScript(faults=[Status("PERMISSION_DENIED")]))
    with pytest.raises(exceptions.PermissionDenied):
        publisher.publish(TOPIC, b"data").result(timeout=5)
    samples = page.samples()
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = " ".join(t["expr"] for panel in board["panels"] for t in panel["targets"])
    (topics,) = (item["query"] for item in board["templating"]["list"] if item["name"] == "topic")
    asked_for = set(re.findall(r"(\w+)\{", queries))
    label_names = set(re.findall(r"(\w+)(?:=~|!=|=)\"", queries))
    label_names |= set(re.findall(r"by \((\w+)\)", queries))
    label_names |= set(re.findall(r"\{\{(\w+)\}\}", DASHBOARD.read_text(encoding="utf-8")))
    exported = {sample.name for sample in samples}

    assert topics == f"label_values({name_of('batches')}, messaging_destination_name)"
    assert asked_for <= exported
    assert exported - asked_for == {f"{DURATION}_sum"}
    assert label_names <= {label for sample in samples for label in sample.labels}
    assert {"le", "error_type", "messaging_destination_name"} <= label_names


@pytest.mark.usefixtures("server")
def test_a_meter_provider_that_is_set_late() -> None:
    """A publisher made before has all metrics but the durations; one made after has them too."""
    run(
        COLLECT
        + """
early = HedgedPublisher(settings(max_messages=1))
early.publish(topic, b"data").result(timeout=10)
metrics.set_meter_provider(MeterProvider([reader]))
for publisher in (early, HedgedPublisher(settings(max_messages=1))):
    publisher.publish(topic, b"data").result(timeout=10)
assert batches() == 3
assert collected()["messaging.client.operation.duration"].count == 1
"""
    )


@needs_fork
@pytest.mark.usefixtures("server")
def test_a_forked_child_exports_what_it_counts_itself() -> None:
    """The meter provider is set after the import, and before the publisher is made."""
    run(
        COLLECT
        + """
metrics.set_meter_provider(MeterProvider([reader]))
publisher = HedgedPublisher(settings(max_messages=1))
for number in range(5):
    publisher.publish(topic, b"parent").result(timeout=10)
assert batches() == 5, batches()
child = os.fork()
if not child:
    publisher.publish(topic, b"child").result(timeout=10)
    assert batches() == 1, batches()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
publisher.publish(topic, b"parent").result(timeout=10)
assert batches() == 6, batches()
"""
    )
