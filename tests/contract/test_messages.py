"""What is published arrives at a subscriber, at either server."""

from __future__ import annotations

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.types import BatchSettings

from tests.contract.conftest import MakePublisher
from tests.contract.receiving import receive, received

MESSAGES = 10_000


def test_ten_thousand_messages(
    make_publisher: MakePublisher, subscriber: SubscriberClient, topic: str, subscription: str
) -> None:
    """Each of ten thousand messages is received, under the id that its future has."""
    publisher = make_publisher(BatchSettings(max_messages=100, max_latency=0.05))
    bodies = [f"message {number}".encode() for number in range(MESSAGES)]
    futures = [publisher.publish(topic, body) for body in bodies]
    expected = {
        future.result(timeout=60): received(body, {})
        for future, body in zip(futures, bodies, strict=True)
    }
    assert len(expected) == MESSAGES

    messages = receive(subscriber, subscription, MESSAGES)

    if publisher.hedging_stats().hedges_sent == 0:
        assert messages == expected
    else:  # a machine this slow gets duplicates, which is what hedging costs
        assert messages.items() >= expected.items()
        assert {message.data for message in messages.values()} == set(bodies)


@pytest.mark.parametrize(
    ("data", "attributes"),
    [
        pytest.param(b"data", {}, id="data-only"),
        pytest.param(b"", {"only": "attributes"}, id="attributes-only"),
        pytest.param(bytes(range(256)), {"kind": "every byte"}, id="binary"),
        pytest.param("наряд ✓ 訂單 🚚".encode(), {"größe": "ÄÖÜ ✓ 訂單 🚚"}, id="unicode"),
        pytest.param(b"data", {"empty": ""}, id="empty-value"),
        pytest.param(b"data", {"key": "x" * 1024}, id="longest-value"),
        pytest.param(b"data", {f"key-{n}": f"value {n}" for n in range(100)}, id="most-attributes"),
        pytest.param(b"data", {"client": "1", "message": "2", "policy": "3"}, id="names"),
    ],
)
def test_data_and_attributes(
    make_publisher: MakePublisher,
    subscriber: SubscriberClient,
    topic: str,
    subscription: str,
    data: bytes,
    attributes: dict[str, str],
) -> None:
    """A message keeps its data and its attributes, and gets no others."""
    publisher = make_publisher()
    message_id = publisher.publish(topic, data, **attributes).result(timeout=60)
    assert receive(subscriber, subscription, 1) == {message_id: received(data, attributes)}


def test_attributes_as_bytes(
    make_publisher: MakePublisher, subscriber: SubscriberClient, topic: str, subscription: str
) -> None:
    """An attribute that is given as UTF-8 bytes is received as text."""
    publisher = make_publisher()
    message_id = publisher.publish(topic, b"data", key="✓".encode()).result(timeout=60)
    assert receive(subscriber, subscription, 1) == {message_id: received(b"data", {"key": "✓"})}


def test_the_largest_messages(
    make_publisher: MakePublisher, subscriber: SubscriberClient, topic: str, subscription: str
) -> None:
    """Messages of 9.9 MB, one a request, arrive whole."""
    publisher = make_publisher()
    bodies = [bytes([number]) * 9_900_000 for number in range(3)]
    futures = [publisher.publish(topic, body) for body in bodies]
    expected = {
        future.result(timeout=60): received(body, {})
        for future, body in zip(futures, bodies, strict=True)
    }
    messages = receive(subscriber, subscription, len(bodies))
    # Compared out of the assert: pytest would print the difference.
    same = messages == expected
    assert same


def test_a_topic_that_does_not_exist(make_publisher: MakePublisher, topic: str) -> None:
    """The future ends with ``NotFound``."""
    publisher = make_publisher()
    error = publisher.publish(f"{topic}-missing", b"lost").exception(timeout=60)
    assert type(error) is exceptions.NotFound


def test_an_empty_message(make_publisher: MakePublisher, topic: str) -> None:
    """Neither data nor attributes: the server refuses it, and the future says so."""
    error = make_publisher().publish(topic, b"").exception(timeout=60)
    assert type(error) is exceptions.InvalidArgument


def test_topics(make_publisher: MakePublisher, topic: str) -> None:
    """Topics are created once, found, listed and deleted."""
    publisher = make_publisher()
    project = topic.partition("/topics/")[0]
    with pytest.raises(exceptions.AlreadyExists):
        publisher.create_topic(name=topic)
    assert publisher.get_topic(topic=topic).name == topic
    assert topic in [found.name for found in publisher.list_topics(project=project)]
    publisher.delete_topic(topic=topic)
    assert topic not in [found.name for found in publisher.list_topics(project=project)]
    with pytest.raises(exceptions.NotFound):
        publisher.get_topic(topic=topic)
