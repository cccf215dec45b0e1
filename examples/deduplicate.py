"""Drop the duplicates that hedging can cause, by an id of the message's own.

A message that was stored twice has two message ids, so those cannot tell. The publisher puts an
id of its own into an attribute, and the subscriber keeps what it has not seen before. (A real
subscriber keeps the ids where its results are, in a unique column for example, so that they
outlive a restart.)

Runs against ``PUBSUB_EMULATOR_HOST`` if that is set; else it starts a test server of its own,
which stores one request and leaves it unanswered for three seconds: a certain duplicate.
"""

import os
import queue
import uuid

from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.subscriber.message import Message

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, StoreThenStall

COUNT = 50


def publish(topic: str) -> None:
    """Publish numbered events, each with an id of its own."""
    with HedgedPublisher(hedging_settings=HedgingSettings(hedge_delay=0.1)) as publisher:
        for number in range(COUNT):
            event_id = str(uuid.uuid4())
            publisher.publish(topic, b"%d" % number, event_id=event_id).result()


def receive(subscription: str) -> None:
    """Receive until nothing more arrives for two seconds, and keep each event once."""
    deliveries: queue.Queue[Message] = queue.Queue()
    kept: dict[str, bytes] = {}
    duplicates = 0
    with SubscriberClient() as subscriber:
        stream = subscriber.subscribe(subscription, callback=deliveries.put)
        while True:
            try:
                message = deliveries.get(timeout=2.0)
            except queue.Empty:
                break
            event_id = message.attributes["event_id"]
            if event_id in kept:
                duplicates += 1
            else:
                kept[event_id] = message.data
            message.ack()
        stream.cancel()
        stream.result()
    print(f"{len(kept)} events kept, {duplicates} duplicates dropped")


def main() -> None:
    """Publish to a new topic, receive from a new subscription."""
    name = uuid.uuid4().hex[:8]
    with HedgedPublisher() as publisher, SubscriberClient() as subscriber:
        topic = publisher.topic_path("test", f"events-{name}")
        subscription = subscriber.subscription_path("test", f"events-{name}")
        publisher.create_topic(name=topic)
        subscriber.create_subscription(name=subscription, topic=topic)
    publish(topic)
    receive(subscription)


if __name__ == "__main__":
    if "PUBSUB_EMULATOR_HOST" in os.environ:
        main()
    else:
        script = FaultScript(latency=Fixed(0.005), faults=[StoreThenStall(3.0, calls=[25])])
        with PubSubServer(script, set_emulator_host=True):
            main()
