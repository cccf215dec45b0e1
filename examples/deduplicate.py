"""Store each message once: drop duplicates in the transaction that keeps the result.

A message that was published twice, as hedging and retries can do, has two message ids, so those
cannot tell. ``id_attribute`` gives each message an id of its own. The subscriber writes that id and
what comes of the message in one transaction: a copy finds the id there and changes nothing, also
after a crash between the two. It acknowledges a message only after that.

Runs against ``PUBSUB_EMULATOR_HOST`` if that is set; else it starts a test server of its own,
which stores one request and leaves it unanswered for three seconds: a certain duplicate.
"""

import contextlib
import os
import queue
import sqlite3
import tempfile
import uuid

from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.subscriber.message import Message

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, StoreThenStall

COUNT = 50


def publish(topic: str) -> None:
    """Publish numbers; each message gets an id of its own."""
    settings = HedgingSettings(hedge_delay=0.1)
    with HedgedPublisher(hedging_settings=settings, id_attribute="event_id") as publisher:
        for number in range(COUNT):
            publisher.publish(topic, b"%d" % number).result()


def keep(database: sqlite3.Connection, message: Message) -> bool:
    """Add a number to the total, once for each id; tell whether it was the first copy."""
    with database:  # a transaction: committed at the end of the block, taken back on an error
        event = (message.attributes["event_id"],)
        added = database.execute("INSERT OR IGNORE INTO seen VALUES (?)", event)
        if added.rowcount:
            database.execute("UPDATE result SET total = total + ?", (int(message.data),))
    message.ack()  # only now: without it the message comes again
    return bool(added.rowcount)


def receive(subscription: str, path: str) -> None:
    """Receive until nothing more arrives for two seconds."""
    deliveries: queue.Queue[Message] = queue.Queue()
    with contextlib.closing(sqlite3.connect(path)) as database, SubscriberClient() as subscriber:
        database.execute("CREATE TABLE seen (event_id TEXT PRIMARY KEY)")
        database.execute("CREATE TABLE result (total INTEGER)")
        database.execute("INSERT INTO result VALUES (0)")
        kept = duplicates = 0
        stream = subscriber.subscribe(subscription, callback=deliveries.put)
        with contextlib.suppress(queue.Empty):
            while True:
                if keep(database, deliveries.get(timeout=2.0)):
                    kept += 1
                else:
                    duplicates += 1
        stream.cancel()
        stream.result()
        (total,) = database.execute("SELECT total FROM result").fetchone()
    print(f"{kept} events kept, {duplicates} duplicates dropped, the total is {total}")


def main() -> None:
    """Publish to a new topic, receive from a new subscription."""
    name = uuid.uuid4().hex[:8]
    with HedgedPublisher() as publisher, SubscriberClient() as subscriber:
        topic = publisher.topic_path("test", f"events-{name}")
        subscription = subscriber.subscription_path("test", f"events-{name}")
        publisher.create_topic(name=topic)
        subscriber.create_subscription(name=subscription, topic=topic)
    publish(topic)
    with tempfile.TemporaryDirectory() as folder:
        receive(subscription, os.path.join(folder, "result.db"))


if __name__ == "__main__":
    if "PUBSUB_EMULATOR_HOST" in os.environ:
        main()
    else:
        script = FaultScript(latency=Fixed(0.005), faults=[StoreThenStall(3.0, calls=[25])])
        with PubSubServer(script, set_emulator_host=True):
            main()
