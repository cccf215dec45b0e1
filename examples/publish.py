"""Publish with hedging: written for the official client, with one class name changed.

Runs against ``PUBSUB_EMULATOR_HOST`` if that is set; else it starts a test server of its own,
which leaves one request unanswered for three seconds.
"""

import os
import time
import uuid

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall


def main() -> None:
    """Publish a hundred messages, one after the other, and print what the slowest one took."""
    slowest = 0.0
    with HedgedPublisher(hedging_settings=HedgingSettings(hedge_delay=0.2)) as publisher:
        topic = publisher.topic_path("test", f"orders-{uuid.uuid4().hex[:8]}")
        publisher.create_topic(name=topic)
        for number in range(100):
            start = time.monotonic()
            publisher.publish(topic, b"order", order_id=str(number)).result()
            slowest = max(slowest, time.monotonic() - start)
        stats = publisher.hedging_stats()
    print(f"100 messages published, the slowest in {slowest:.2f} s")
    print(f"{stats.hedges_sent} hedges sent, {stats.hedges_won} of them won")


if __name__ == "__main__":
    if "PUBSUB_EMULATOR_HOST" in os.environ:
        main()
    else:
        # The fiftieth request: by then, successes have earned the token that a hedge costs.
        script = FaultScript(latency=Fixed(0.005), faults=[Stall(3.0, calls=[50])])
        with PubSubServer(script, set_emulator_host=True):
            main()
