"""Publish and end the program without losing a message: leaving the ``with`` block flushes.

Runs against ``PUBSUB_EMULATOR_HOST`` if that is set; else it starts a test server of its own.
"""

import os
import uuid

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer


def main() -> None:
    """Publish without waiting for any result, then show that every message was stored."""
    with HedgedPublisher() as publisher:
        topic = publisher.topic_path("test", f"events-{uuid.uuid4().hex[:8]}")
        publisher.create_topic(name=topic)
        futures = [publisher.publish(topic, b"event") for _ in range(1000)]
        # A long-running program can do the same at any time: publisher.flush(timeout=30).
    stored = sum(future.done() and future.exception() is None for future in futures)
    print(f"{stored} of {len(futures)} messages are stored")


if __name__ == "__main__":
    if "PUBSUB_EMULATOR_HOST" in os.environ:
        main()
    else:
        with PubSubServer(FaultScript(latency=Fixed(0.05)), set_emulator_host=True):
            main()
