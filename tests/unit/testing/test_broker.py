"""Topics, subscriptions and stored messages."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import types

from hedged_pubsub.testing import StatusError
from hedged_pubsub.testing.broker import DELETED_TOPIC, Broker, SubscriptionProto, TopicProto

ORDERS = "projects/test/topics/orders"
SHOP = "projects/test/subscriptions/shop"
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


def test_a_stored_message_holds_all_there_is_to_know(broker: Broker) -> None:
    """A record has body, attributes and where the message came from."""
    (message_id,) = publish(broker, b"body")
    (message,) = broker.messages(None)
    assert (message.message_id, message.topic, message.data) == (message_id, ORDERS, b"body")
    assert message.attributes == (("a", "b"), ("k", "v"))
    assert (message.attempt_number, message.call) == (1, 7)


def test_ids_are_unique(broker: Broker) -> None:
    """The same body stored twice gets two ids."""
    ids = publish(broker, b"x", b"x") + publish(broker, b"x")
    assert len(set(ids)) == 3
    assert [m.message_id for m in broker.messages(None)] == ids


def test_messages_of_one_topic(broker: Broker) -> None:
    """Records can be had for one topic."""
    other = "projects/test/topics/other"
    broker.create_topic(TopicProto(name=other))
    publish(broker, b"a")
    publish(broker, b"b", topic=other)
    assert [m.data for m in broker.messages(other)] == [b"b"]


def test_subscriptions_get_what_is_published_after_them(broker: Broker) -> None:
    """A message goes to each subscription of its topic, with its id."""
    (message_id,) = publish(broker, b"x")
    (delivery,) = broker.subscription(SHOP).take("one", max_messages=10, timeout=0)
    assert delivery.message.message_id == message_id
    assert delivery.message.publish_time.seconds > 0


def test_topics_are_listed_by_project(broker: Broker) -> None:
    """A project's list does not hold those of a project whose name starts alike."""
    broker.create_topic(TopicProto(name="projects/test2/topics/orders"))
    assert [topic.name for topic in broker.topics("projects/test")] == [ORDERS]


def test_a_subscription_outlives_its_topic(broker: Broker) -> None:
    """Deleting a topic leaves its subscription, which says so."""
    broker.delete_topic(ORDERS)
    assert broker.subscription(SHOP).proto.topic == DELETED_TOPIC
    assert broker.topics("projects/test") == []


def test_update_changes_what_the_mask_names_only(broker: Broker) -> None:
    """Fields outside the mask stay."""
    broker.update_topic(
        TopicProto(name=ORDERS, labels={"team": "shop"}, kms_key_name="key"),
        field_mask_pb2.FieldMask(paths=["labels"]),
    )
    topic = broker.topic(ORDERS)
    assert dict(topic.labels) == {"team": "shop"}
    assert topic.kms_key_name == ""


def test_auto_creation_makes_unknown_topics() -> None:
    """With auto-creation every well-formed topic can be published to."""
    broker = Broker(auto_create_topics=True)
    broker.check_topic(ORDERS)
    assert len(publish(broker, b"x")) == 1
    with pytest.raises(StatusError, match="INVALID_ARGUMENT"):
        broker.check_topic("orders")


def test_clear_keeps_topics(broker: Broker) -> None:
    """A clear forgets messages, and nothing else."""
    publish(broker, b"x")
    broker.clear()
    assert broker.messages(None) == ()
    assert broker.subscription(SHOP).take("one", max_messages=1, timeout=0) == []
    assert publish(broker, b"y")


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda b: b.create_topic(TopicProto(name=ORDERS)), "ALREADY_EXISTS"),
        (lambda b: b.create_topic(TopicProto(name="orders")), "INVALID_ARGUMENT"),
        (lambda b: b.create_topic(TopicProto(name=SHOP)), "INVALID_ARGUMENT"),
        (lambda b: b.topic(ORDERS + "x"), "NOT_FOUND"),
        (lambda b: b.check_topic(ORDERS + "x"), "NOT_FOUND"),
        (lambda b: b.delete_topic(ORDERS + "x"), "NOT_FOUND"),
        (lambda b: publish(b, b"x", topic=ORDERS + "x"), "NOT_FOUND"),
        (
            lambda b: b.create_subscription(SubscriptionProto(name=SHOP, topic=ORDERS)),
            "ALREADY_EXISTS",
        ),
        (
            lambda b: b.create_subscription(SubscriptionProto(name=SHOP + "2", topic="t")),
            "NOT_FOUND",
        ),
        (
            lambda b: b.create_subscription(
                SubscriptionProto(name=SHOP + "2", topic=ORDERS, ack_deadline_seconds=5)
            ),
            "INVALID_ARGUMENT",
        ),
        (lambda b: b.delete_subscription(SHOP + "x"), "NOT_FOUND"),
        (lambda b: b.subscriptions(topic=ORDERS + "x"), "NOT_FOUND"),
        (
            lambda b: b.update_topic(TopicProto(name=ORDERS), field_mask_pb2.FieldMask()),
            "INVALID_ARGUMENT",
        ),
        (
            lambda b: b.update_topic(
                TopicProto(name=ORDERS), field_mask_pb2.FieldMask(paths=["nonsense"])
            ),
            "INVALID_ARGUMENT",
        ),
    ],
)
def test_errors_have_the_services_codes(broker: Broker, act: Any, code: str) -> None:
    """What the real service refuses, the broker refuses with the same status code."""
    with pytest.raises(StatusError) as caught:
        act(broker)
    assert caught.value.code is grpc.StatusCode[code]
