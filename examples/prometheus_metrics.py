"""Export what hedging does to Prometheus; grafana-dashboard.json beside this file draws it.

Needs ``pip install opentelemetry-exporter-prometheus``. Runs against ``PUBSUB_EMULATOR_HOST`` if
that is set; else it starts a test server of its own, which leaves three requests unanswered.
"""

import os
import urllib.request
import uuid

from google.cloud.pubsub_v1.types import BatchSettings
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from prometheus_client.parser import text_string_to_metric_families

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall

PORT = int(os.environ.get("METRICS_PORT", "0"))  # what Prometheus scrapes; 0 for any that is free


def main() -> None:
    """Publish, then read the page that Prometheus would read."""
    # Before the first publisher is made.
    metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
    server, thread = start_http_server(PORT, addr="127.0.0.1")

    with HedgedPublisher(
        BatchSettings(max_messages=1), hedging_settings=HedgingSettings(hedge_delay=0.2)
    ) as publisher:
        topic = publisher.topic_path("test", f"orders-{uuid.uuid4().hex[:8]}")
        publisher.create_topic(name=topic)
        for _ in range(100):
            publisher.publish(topic, b"order").result()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as page:
            text = page.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if "hedged_pubsub" in sample.name:
                    print(sample.name, sample.value)
        print(f"{publisher.hedging_stats().hedges_won} hedges won")

    server.shutdown()
    server.server_close()
    thread.join()


if __name__ == "__main__":
    if "PUBSUB_EMULATOR_HOST" in os.environ:
        main()
    else:
        script = FaultScript(latency=Fixed(0.005), faults=[Stall(3.0, calls=[40, 60, 80])])
        with PubSubServer(script, set_emulator_host=True):
            main()
