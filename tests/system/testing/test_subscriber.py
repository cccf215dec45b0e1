"""The subscriber side, through the official client."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1

from hedged_pubsub.testing import PubSubServer

from .raw_client import RawClient, raw_client, wait_until


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """Run a server with a topic and a subscription."""
    with PubSubServer(set_emulator_host=True) as running:
        running.create_topic("orders")
        running.create_subscription("shop", "orders")
        yield running


@pytest.fixture
def shop(server: PubSubServer) -> str:
    """Return the path of the subscription."""
    return server.subscription_path("shop")


@pytest.fixture
def publisher(server: PubSubServer) -> Iterator[RawClient]:
    """Connect a publisher."""
    with raw_client(server) as connected:
        yield connected


@pytest.fixture
def subscriber(server: PubSubServer) -> Iterator[pubsub_v1.SubscriberClient]:
    """Connect the official subscriber."""
    with pubsub_v1.SubscriberClient() as connected:
        yield connected


def test_subscribe_receives_and_acknowledges(
    publisher: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A streaming subscriber gets what was published before and after it, each once."""
    publisher.publish(b"0", b"1")
    received: list[bytes] = []
    complete = threading.Event()

    def receive(message: pubsub_v1.subscriber.message.Message) -> None:
        received.append(message.data)
        message.ack()
        if len(received) == 20:
            complete.set()

    streaming = subscriber.subscribe(shop, receive)
    for number in range(2, 20):
        publisher.publish(b"%d" % number)
    assert complete.wait(10)
    streaming.cancel()
    streaming.result(timeout=10)
    assert sorted(received, key=int) == [b"%d" % number for number in range(20)]


def test_a_nack_brings_the_message_again(
    publisher: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A message that is refused is delivered again."""
    publisher.publish(b"a")
    deliveries: list[str] = []
    again = threading.Event()

    def receive(message: pubsub_v1.subscriber.message.Message) -> None:
        deliveries.append(message.message_id)
        if len(deliveries) == 1:
            message.nack()
        else:
            message.ack()
            again.set()

    streaming = subscriber.subscribe(shop, receive)
    assert again.wait(10)
    streaming.cancel()
    streaming.result(timeout=10)
    assert len(set(deliveries)) == 1


def test_a_subscription_that_does_not_exist_ends_the_stream(
    server: PubSubServer, subscriber: pubsub_v1.SubscriberClient
) -> None:
    """The official client gets NOT_FOUND."""
    streaming = subscriber.subscribe(server.subscription_path("none"), lambda message: None)
    with pytest.raises(exceptions.NotFound):
        streaming.result(timeout=10)


def test_deleting_a_subscription_ends_its_streams(
    subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A stream that waits for messages learns that there will be none."""
    streaming = subscriber.subscribe(shop, lambda message: None)
    subscriber.delete_subscription(subscription=shop)
    with pytest.raises(exceptions.NotFound):
        streaming.result(timeout=10)


def test_pull_and_acknowledge(
    publisher: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A pull leases messages; acknowledged ones are gone, refused ones come again."""
    publisher.publish(b"a", b"b")
    messages = subscriber.pull(subscription=shop, max_messages=10).received_messages
    assert [m.message.data for m in messages] == [b"a", b"b"]
    subscriber.acknowledge(subscription=shop, ack_ids=[messages[0].ack_id])
    subscriber.modify_ack_deadline(
        subscription=shop, ack_ids=[messages[1].ack_id], ack_deadline_seconds=0
    )
    (again,) = subscriber.pull(subscription=shop, max_messages=10).received_messages
    assert again.message == messages[1].message


def test_pull_waits_for_the_first_message(
    publisher: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A pull of an empty subscription answers as soon as something is published."""
    received: list[bytes] = []

    def pull() -> None:
        response = subscriber.pull(subscription=shop, max_messages=1)
        received.extend(m.message.data for m in response.received_messages)

    thread = threading.Thread(target=pull)
    thread.start()
    publisher.publish(b"a")
    thread.join(5)
    assert received == [b"a"]


def test_pull_answers_with_nothing_before_its_deadline(
    subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A pull that finds nothing is answered, not timed out."""
    response = subscriber.pull(subscription=shop, max_messages=1, timeout=0.5, retry=None)
    assert not response.received_messages


@pytest.mark.filterwarnings("ignore:The return_immediately flag is deprecated:DeprecationWarning")
def test_pull_may_return_immediately(subscriber: pubsub_v1.SubscriberClient, shop: str) -> None:
    """The deprecated flag is honoured."""
    request = {"subscription": shop, "max_messages": 1, "return_immediately": True}
    assert not subscriber.pull(request=request, timeout=5).received_messages


def test_a_cancelled_pull_takes_no_message(
    server: PubSubServer, publisher: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A message is not leased to a client that has gone."""
    request = pubsub_v1.types.PullRequest(subscription=shop, max_messages=1)
    call = subscriber.transport.pull.future(request, timeout=5)
    call.cancel()
    wait_until(call.done)
    publisher.publish(b"a")
    assert len(subscriber.pull(subscription=shop, max_messages=1).received_messages) == 1


def test_subscriptions_through_the_official_client(
    server: PubSubServer, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """Create, get, list and delete work as the official client expects."""
    paths = [server.subscription_path(f"s{number}") for number in range(3)]
    for path in paths:
        subscriber.create_subscription(name=path, topic=server.topic_path("orders"))
    with pytest.raises(exceptions.AlreadyExists):
        subscriber.create_subscription(name=shop, topic=server.topic_path("orders"))
    assert subscriber.get_subscription(subscription=paths[0]).ack_deadline_seconds == 10
    request = {"project": "projects/test", "page_size": 2}
    assert [s.name for s in subscriber.list_subscriptions(request=request)] == [shop, *paths]
    subscriber.delete_subscription(subscription=paths[0])
    with pytest.raises(exceptions.NotFound):
        subscriber.get_subscription(subscription=paths[0])
    with pytest.raises(exceptions.InvalidArgument):
        subscriber.pull(subscription=shop, max_messages=0)


def test_a_stop_ends_streams(
    server: PubSubServer, publisher: RawClient, subscriber: pubsub_v1.SubscriberClient, shop: str
) -> None:
    """A server with an open stream stops, and leaves no thread behind."""
    request = pubsub_v1.types.StreamingPullRequest(
        subscription=shop, stream_ack_deadline_seconds=10
    )
    # Not subscribe(): that would try to open the stream again and again.
    responses = subscriber.transport.streaming_pull(iter([request]))
    publisher.publish(b"a")
    assert next(responses).received_messages
    server.stop()
    with pytest.raises(grpc.RpcError) as caught:
        next(responses)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    wait_until(lambda: not any(t.name.startswith("pubsub-server") for t in threading.enumerate()))
