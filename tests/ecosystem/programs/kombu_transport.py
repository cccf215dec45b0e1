"""Celery's broker library, by its Pub/Sub transport: sends 300 messages, and receives them."""

from client import IS_HEDGED
from kombu import Connection, Consumer, Exchange, Queue
from kombu.transport import gcpubsub

if IS_HEDGED:
    from hedged_pubsub import HedgedPublisher

    gcpubsub.PublisherClient = HedgedPublisher

received = []


def receive(body, message):
    """Take in a message."""
    received.append(body)
    message.ack()


exchange = Exchange("orders", type="fanout")
with Connection("gcpubsub://projects/test") as connection:
    queue = Queue("orders", exchange)
    with Consumer(connection.channel(), [queue], callbacks=[receive]):
        producer = connection.Producer(exchange=exchange)
        for number in range(300):
            producer.publish(number)
        while len(received) < 300:
            connection.drain_events(timeout=10)
print(sorted(received) == list(range(300)))
