"""Topics, subscriptions with their queues and leases, and stored messages."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types

from hedged_pubsub.testing import StatusError
from hedged_pubsub.testing.broker import (
    DELETED_TOPIC,
    Broker,
    Delivery,
    Subscription,
    SubscriptionProto,
    TopicProto,
)

ORDERS = "projects/test/topics/orders"
SHOP = "projects/test/subscriptions/shop"
SHOP2 = SHOP + "2"
MessageProto = types.PubsubMessage.pb()


@pytest.fixture
def broker() -> Broker:
    """Return a broker with one topic and one subscription."""
    broker = Broker(auto_create_topics=False)
    broker.create_topic(TopicProto(name=ORDERS))
    broker.create_subscription(SubscriptionProto(name=SHOP, topic=ORDERS))
    return broker


def publish(broker: Broker, *bodies: bytes, topic: str = ORDERS) -> list[str]:
    """Publish one batch."""
    messages = [MessageProto(data=body, attributes={"k": "v", "a": "b"}) for body in bodies]
    return broker.publish(topic, messages, attempt_number=1, call=7)


def subscribe(broker: Broker, name: str, **fields: Any) -> None:
    """Create a subscription."""
    broker.create_subscription(SubscriptionProto(name=name, **fields))


def subscribe_as(broker: Broker, fields: dict[str, Any]) -> None:
    """Create a subscription as the official client asks for it."""
    asked = types.Subscription(name=SHOP2, topic=ORDERS, **fields)
    broker.create_subscription(types.Subscription.pb(asked))


def update(broker: Broker, *paths: str) -> None:
    """Update fields of the topic."""
    broker.update_topic(TopicProto(name=ORDERS), field_mask_pb2.FieldMask(paths=list(paths)))


def test_a_stored_message_holds_all_there_is_to_know(broker: Broker) -> None:
    """Each has an id of its own; a record has where it came from; a subscription gets it."""
    ids = publish(broker, b"x", b"x") + publish(broker, b"x")
    stored = broker.messages(None)
    assert [message.message_id for message in stored] == ids
    assert len(set(ids)) == 3
    assert (stored[0].topic, stored[0].data) == (ORDERS, b"x")
    assert stored[0].attributes == (("a", "b"), ("k", "v"))
    assert (stored[0].attempt_number, stored[0].call) == (1, 7)
    delivered = take(broker.subscription(SHOP))
    assert [message.message_id for message in delivered] == ids
    assert delivered[0].publish_time.seconds > 0


def test_a_subscription_outlives_its_topic(broker: Broker) -> None:
    """Deleting a topic leaves its subscription, and topics of a project whose name starts alike."""
    broker.create_topic(TopicProto(name="projects/test2/topics/orders"))
    assert [topic.name for topic in broker.topics("projects/test")] == [ORDERS]
    broker.delete_topic(ORDERS)
    assert broker.subscription(SHOP).proto.topic == DELETED_TOPIC
    assert broker.topics("projects/test") == []
    assert len(broker.topics("projects/test2")) == 1


def test_clear_forgets_waiting_and_leased_messages(broker: Broker) -> None:
    """After a clear, topics and subscriptions are there; what was published before never comes."""
    publish(broker, b"leased", b"waiting")
    lease = take_one(broker.subscription(SHOP))
    broker.clear()
    broker.subscription(SHOP).modify_ack_deadline([lease.ack_id], 0)
    (message_id,) = publish(broker, b"y")
    (message,) = take(broker.subscription(SHOP))
    assert message.message_id == message_id


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda b: b.create_topic(TopicProto(name=ORDERS)), "ALREADY_EXISTS"),
        (lambda b: b.create_topic(TopicProto(name="orders")), "INVALID_ARGUMENT"),
        (lambda b: b.create_topic(TopicProto(name=SHOP)), "INVALID_ARGUMENT"),
        (lambda b: b.topic("x"), "NOT_FOUND"),
        (lambda b: b.check_topic(f"{ORDERS}2"), "NOT_FOUND"),
        (lambda b: b.check_topic("x"), "INVALID_ARGUMENT"),
        (lambda b: b.delete_topic("x"), "NOT_FOUND"),
        (lambda b: publish(b, b"x", topic="x"), "NOT_FOUND"),
        (lambda b: subscribe(b, SHOP, topic=ORDERS), "ALREADY_EXISTS"),
        (lambda b: subscribe(b, SHOP2, topic="x"), "NOT_FOUND"),
        (lambda b: subscribe(b, "s", topic=ORDERS), "INVALID_ARGUMENT"),
        (lambda b: subscribe(b, SHOP2, topic=ORDERS, ack_deadline_seconds=5), "INVALID_ARGUMENT"),
        (lambda b: b.delete_subscription("x"), "NOT_FOUND"),
        (lambda b: b.subscriptions(topic="x"), "NOT_FOUND"),
        (update, "INVALID_ARGUMENT"),
        (lambda b: update(b, "nonsense"), "INVALID_ARGUMENT"),
    ],
)
def test_errors_have_the_services_codes(broker: Broker, act: Any, code: str) -> None:
    """What the real service refuses, the broker refuses with the same status code."""
    with pytest.raises(StatusError) as caught:
        act(broker)
    assert caught.value.code.name == code


@pytest.mark.parametrize(
    "field",
    [
        {"push_config": {"push_endpoint": "https://example.com"}},
        {"bigquery_config": {"table": "p.d.t"}},
        {"cloud_storage_config": {"bucket": "b"}},
        {"enable_message_ordering": True},
        {"filter": 'attributes.a = "b"'},
        {"dead_letter_policy": {"max_delivery_attempts": 5}},
        {"retry_policy": {"minimum_backoff": "10s"}},
        {"enable_exactly_once_delivery": True},
        {"detached": True},
    ],
    ids=lambda field: next(iter(field)),
)
def test_what_a_subscription_would_not_do_is_refused(broker: Broker, field: dict[str, Any]) -> None:
    """Or a test that relies on it would pass here and fail on the service."""
    with pytest.raises(StatusError, match=rf"^UNIMPLEMENTED: subscription\.{next(iter(field))} is"):
        subscribe_as(broker, field)


def test_what_a_topic_would_not_do_is_refused(broker: Broker) -> None:
    """At its creation and when it is updated; a refused update changes nothing."""
    schema = types.Topic(name=ORDERS, schema_settings={"schema": "projects/p/schemas/s"})
    refused = pytest.raises(StatusError, match=r"^UNIMPLEMENTED: topic\.schema_settings is")
    with refused:
        broker.create_topic(types.Topic.pb(schema))
    with refused:
        mask = field_mask_pb2.FieldMask(paths=["schema_settings"])
        broker.update_topic(types.Topic.pb(schema), mask)
    assert not broker.topic(ORDERS).HasField("schema_settings")


def test_what_changes_no_test_is_accepted(broker: Broker) -> None:
    """Programs create topics and subscriptions with labels, retention and the like."""
    day = {"seconds": 86_400}
    subscribe_as(
        broker,
        {
            "labels": {"team": "shop"},
            "message_retention_duration": day,
            "retain_acked_messages": True,
            "expiration_policy": {"ttl": day},
            "push_config": {},
        },
    )
    topic = {
        "labels": {"team": "shop"},
        "message_retention_duration": day,
        "message_storage_policy": {"allowed_persistence_regions": ["europe-west1"]},
        "kms_key_name": "k",
    }
    broker.create_topic(types.Topic.pb(types.Topic(name=ORDERS + "2", **topic)))


@pytest.fixture
def source() -> Subscription:
    """Return a subscription with two messages, whose leases last longer than any test."""
    subscription = Subscription(SubscriptionProto(name="s", ack_deadline_seconds=600))
    subscription.add(["a", "b"])
    return subscription


def take(source: Subscription, consumer: str = "one", count: int = 10, most: int = 0) -> list[Any]:
    """Take what is there without waiting."""
    deliveries = source.take(consumer, max_messages=count, max_outstanding=most, timeout=0)
    return [delivery.message for delivery in deliveries]


def take_one(source: Subscription) -> Delivery:
    """Take the first message."""
    return source.take("one", max_messages=1)[0]


def test_a_message_is_leased_until_it_is_acknowledged_or_refused(source: Subscription) -> None:
    """What is leased is not delivered to others; refused, by a deadline of 0, it comes first."""
    refused = take_one(source)
    assert take(source, "two") == ["b"]
    assert take(source) == []
    source.modify_ack_deadline([refused.ack_id], 0)
    again = take_one(source)
    assert (refused.message, again.message) == ("a", "a")
    assert again.ack_id != refused.ack_id
    source.acknowledge([again.ack_id, "unknown"])
    source.modify_ack_deadline([again.ack_id], 0)
    assert take(source) == []


def test_a_message_comes_again_after_its_deadline(source: Subscription) -> None:
    """A consumer that waits gets a message as soon as another's lease ends, if not prolonged."""
    first, second = source.take("one", max_messages=2, ack_deadline=0.01)
    source.modify_ack_deadline([second.ack_id], 600)
    assert [d.message for d in source.take("two", max_messages=2, timeout=30)] == [first.message]
    assert take(source) == []


def test_a_consumer_gets_no_more_than_it_can_hold(source: Subscription) -> None:
    """A consumer with its limit of outstanding messages waits until it acknowledges one."""
    delivery = take_one(source)
    assert take(source, most=1) == []
    source.acknowledge([delivery.ack_id])
    assert take(source, most=1) == ["b"]
