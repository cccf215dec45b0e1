"""What hedging takes for granted about Pub/Sub, shown on Google's emulator with its own client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.api_core.exceptions import NotFound
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.types import PublishRequest, PubsubMessage

# What HedgedPublisher sends with the first hedge of a batch.
TELEMETRY = ("x-goog-pubsub-client-telemetry", "CgIIAQ==")


@pytest.fixture
def publisher() -> Iterator[PublisherClient]:
    """An official publisher client on the emulator."""
    client = PublisherClient()
    yield client
    client.stop()
    client.transport.close()


def test_a_published_message_is_received(
    publisher: PublisherClient, subscriber: SubscriberClient, topic: str, subscription: str
) -> None:
    """What is published to the emulator comes out of a subscription, with the same id."""
    message_id = publisher.publish(topic, b"hello", greeting="yes").result(timeout=30)

    (received,) = subscriber.pull(subscription=subscription, max_messages=10).received_messages

    assert received.message.message_id == message_id
    assert received.message.data == b"hello"
    assert dict(received.message.attributes) == {"greeting": "yes"}


def test_the_same_request_twice_is_stored_twice(
    publisher: PublisherClient, subscriber: SubscriberClient, topic: str, subscription: str
) -> None:
    """The service does not recognise a repeated request: that is why hedging can duplicate."""
    message = PubsubMessage(data=b"once", attributes={"event_id": "1"})
    request = PublishRequest(topic=topic, messages=[message])
    send = publisher.transport.publish
    (first,) = send(request, timeout=30).message_ids
    (second,) = send(request, timeout=30, metadata=[TELEMETRY]).message_ids

    received: set[str] = set()
    for _ in range(10):
        response = subscriber.pull(subscription=subscription, max_messages=10)
        received.update(item.message.message_id for item in response.received_messages)
        if len(received) == 2:
            break

    assert first != second
    assert received == {first, second}


def test_an_unknown_topic_is_not_found(publisher: PublisherClient, topic: str) -> None:
    """Publishing to a topic that does not exist ends the future with ``NotFound``."""
    with pytest.raises(NotFound):
        publisher.publish(topic + "-missing", b"lost").result(timeout=30)
