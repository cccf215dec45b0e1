"""Drop duplicates with Redis, where the result is kept elsewhere: workers that share nothing else.

``SET id … NX EX`` is one step: of two workers that get copies at the same time, one does the work.
It claims the id for a minute first, and for a day only when the work is done: should the worker die
in between, the message comes again, and the claim has expired. So the work is done at least once,
and twice only after a crash between the work and the second ``SET``. Where that is too often, keep
the id with the result, in one transaction: ``examples/deduplicate.py``.

Needs ``pip install redis`` and a server, at ``REDIS_URL`` or on this machine; finds Pub/Sub by
``PUBSUB_EMULATOR_HOST``, or starts a test server, which makes a duplicate for certain.
"""

import contextlib
import os
import queue
import uuid

import redis
from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.subscriber.message import Message

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, StoreThenStall

COUNT = 50
WORK_SECONDS = 60
"""More than the work takes, and no more than the subscription's deadline for acknowledgements."""

KEEP_SECONDS = 24 * 3600
"""More than copies can be apart: the publisher's retry timeout, and the time a message waits."""


def publish(topic: str) -> None:
    """Publish numbers; each message gets an id of its own."""
    settings = HedgingSettings(hedge_delay=0.1)
    with HedgedPublisher(hedging_settings=settings, id_attribute="event_id") as publisher:
        for number in range(COUNT):
            publisher.publish(topic, b"%d" % number).result()


def handle(store: "redis.Redis[bytes]", message: Message, results: list[int]) -> str:
    """Do the work of a message once, and tell what became of it."""
    key = "seen:" + message.attributes["event_id"]
    if store.set(key, "at work", nx=True, ex=WORK_SECONDS):
        results.append(int(message.data))  # the work
        store.set(key, "done", ex=KEEP_SECONDS)
        message.ack()
        return "kept"
    if store.get(key) == b"done":
        message.ack()
        return "dropped"
    message.nack()  # another worker is at it: again later, should it die
    return "put off"


def receive(subscription: str, store: "redis.Redis[bytes]") -> None:
    """Receive until nothing more arrives for two seconds."""
    deliveries: queue.Queue[Message] = queue.Queue()
    outcomes, results = {"kept": 0, "dropped": 0, "put off": 0}, list[int]()
    with SubscriberClient() as subscriber:
        stream = subscriber.subscribe(subscription, callback=deliveries.put)
        with contextlib.suppress(queue.Empty):
            while True:
                outcomes[handle(store, deliveries.get(timeout=2.0), results)] += 1
        stream.cancel()
        stream.result()
    dropped, total = outcomes["dropped"], sum(results)
    print(f"{outcomes['kept']} events kept, {dropped} duplicates dropped, the total is {total}")


def main() -> None:
    """Publish to a new topic, receive from a new subscription."""
    name = uuid.uuid4().hex[:8]
    with HedgedPublisher() as publisher, SubscriberClient() as subscriber:
        topic = publisher.topic_path("test", f"events-{name}")
        subscription = subscriber.subscription_path("test", f"events-{name}")
        publisher.create_topic(name=topic)
        subscriber.create_subscription(name=subscription, topic=topic)
    publish(topic)
    url = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
    with contextlib.closing(redis.Redis.from_url(url)) as store:
        receive(subscription, store)


if __name__ == "__main__":
    if "PUBSUB_EMULATOR_HOST" in os.environ:
        main()
    else:
        script = FaultScript(latency=Fixed(0.005), faults=[StoreThenStall(3.0, calls=[25])])
        with PubSubServer(script, set_emulator_host=True):
            main()
