"""The subscriber side, through the official client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.pubsub_v1 import types

from hedged_pubsub.testing import PubSubServer
from tests.system.conftest import wait_until

from .conftest import RawClient, fails

Pull = Callable[..., Any]


@pytest.fixture
def shop(server: PubSubServer, topic: str) -> str:
    """Create a subscription to the topic and return its path."""
    return server.create_subscription("shop", topic)


@pytest.fixture
def subscriber(server: PubSubServer) -> Iterator[pubsub_v1.SubscriberClient]:
    """Connect the official subscriber."""
    with pubsub_v1.SubscriberClient() as connected:
        yield connected


@pytest.fixture
def pull(subscriber: pubsub_v1.SubscriberClient, shop: str) -> Pull:
    """Start a pull from the subscription; return the call."""

    def start(*, timeout: float = 60, **arguments: Any) -> Any:
        request = types.PullRequest({"subscription": shop, "max_messages": 10, **arguments})
        return subscriber.transport.pull.future(request, timeout=timeout)

    return start


def messages(pull: Any) -> list[Any]:
    """Return what a pull has brought."""
    return list(pull.result().received_messages)


def test_subscribe_receives_acknowledges_and_refuses(
    client: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A stream gets what was published before and after it, each once; what it refuses, again."""
    client.publish(b"0", b"1")
    received: SimpleQueue[bytes] = SimpleQueue()
    refused: list[str] = []

    def receive(message: pubsub_v1.subscriber.message.Message) -> None:
        if message.data == b"1" and not refused:
            refused.append(message.message_id)
            message.nack()
            return
        assert message.data != b"1" or refused == [message.message_id]
        message.ack()
        received.put(message.data)

    streaming = subscriber.subscribe(shop, receive)
    for number in range(2, 20):
        client.publish(b"%d" % number)
    bodies = [received.get(timeout=30) for _ in range(20)]
    streaming.cancel()
    streaming.result(timeout=30)
    assert sorted(bodies, key=int) == [b"%d" % number for number in range(20)]
    assert received.empty()


# The heartbeat of older clients does not know that the stream has ended.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("deleted", [False, True], ids=["never there", "deleted meanwhile"])
def test_a_subscription_that_is_not_there_ends_the_stream(
    client: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str, deleted: bool
) -> None:
    """The official client gets NOT_FOUND, at its start or while it waits for messages."""
    received = threading.Event()
    path = shop if deleted else f"{shop}2"
    streaming = subscriber.subscribe(path, lambda message: received.set())
    if deleted:
        client.publish(b"a")
        assert received.wait(30)
        subscriber.delete_subscription(subscription=shop)
    with pytest.raises(exceptions.NotFound):
        streaming.result(timeout=30)


def test_pull_and_acknowledge(
    client: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str, pull: Pull
) -> None:
    """A pull waits for the first message, unless it is cancelled, in a hurry or near its deadline.

    Acknowledged messages are gone, refused ones come again.
    """
    assert messages(pull(return_immediately=True)) == messages(pull(timeout=0.5)) == []
    cancelled, waiting = pull(), pull()
    cancelled.cancel()
    wait_until(cancelled.done)
    client.publish(b"a", b"b")
    first, second = messages(waiting)
    assert [first.message.data, second.message.data] == [b"a", b"b"]
    subscriber.acknowledge(subscription=shop, ack_ids=[first.ack_id])
    subscriber.modify_ack_deadline(
        subscription=shop, ack_ids=[second.ack_id], ack_deadline_seconds=0
    )
    (again,) = messages(pull())
    assert again.message == second.message


def test_subscriptions_through_the_official_client(
    topic: str, subscriber: pubsub_v1.SubscriberClient, shop: str, pull: Pull
) -> None:
    """Create, get, list in pages and delete work as the official client expects."""
    paths = [f"{shop}{number}" for number in range(3)]
    for path in paths:
        subscriber.create_subscription(name=path, topic=topic)
    with pytest.raises(exceptions.AlreadyExists):
        subscriber.create_subscription(name=shop, topic=topic)
    assert subscriber.get_subscription(subscription=paths[0]).ack_deadline_seconds == 10
    request = {"project": "projects/test", "page_size": 2}
    assert [s.name for s in subscriber.list_subscriptions(request=request)] == [shop, *paths]
    subscriber.delete_subscription(subscription=paths[0])
    for wrong, code in (
        ({"subscription": paths[0]}, "NOT_FOUND"),
        ({"max_messages": 0}, "INVALID_ARGUMENT"),
    ):
        with fails(code):
            messages(pull(**wrong))


def test_a_stop_ends_streams(
    server: PubSubServer, client: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A server with an open stream stops, and leaves no thread behind."""
    # Not subscribe(): that would try to open the stream again and again.
    request = types.StreamingPullRequest(subscription=shop, stream_ack_deadline_seconds=10)
    responses = subscriber.transport.streaming_pull(iter([request]))
    client.publish(b"a")
    assert next(responses).received_messages
    server.stop()
    with fails("UNAVAILABLE"):
        next(responses)
    wait_until(lambda: not any(t.name.startswith("pubsub-server") for t in threading.enumerate()))
