"""What programs do with the official client, they can do with this one, to the same effect."""

from __future__ import annotations

from google.api_core.retry import Retry
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgingSettings
from hedged_pubsub.testing import PubSubServer

from .conftest import TOPIC, Make, both_kinds


@both_kinds
def test_a_new_retry_for_each_publish_shares_batches(make: Make, server: PubSubServer) -> None:
    """Celery's broker library makes one each time; what they say is the same."""
    settings = BatchSettings(max_latency=60)
    publisher = make(settings, hedging_settings=HedgingSettings())
    for number in range(300):
        publisher.publish(TOPIC, b"%d" % number, retry=Retry(deadline=90), timeout=30)
    publisher.flush(timeout=10)
    assert len(server.messages()) == 300
    assert len(server.attempts()) == 4
