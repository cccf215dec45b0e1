"""A subscription's queue and leases."""

from __future__ import annotations

from google.pubsub_v1 import types

from hedged_pubsub.testing.subscription import Subscription


def subscription() -> Subscription:
    """Return a subscription whose leases last longer than any test."""
    return Subscription(types.Subscription.pb()(name="s", ack_deadline_seconds=600))


def take(
    source: Subscription, consumer: str = "one", count: int = 10, outstanding: int = 0
) -> list[str]:
    """Take what is there without waiting."""
    deliveries = source.take(consumer, max_messages=count, max_outstanding=outstanding, timeout=0)
    return [delivery.message for delivery in deliveries]


def test_messages_come_in_order_and_once() -> None:
    """What is leased is not delivered to another consumer."""
    source = subscription()
    source.add(["a", "b", "c"])
    assert take(source, count=2) == ["a", "b"]
    assert take(source, "two") == ["c"]
    assert take(source) == []


def test_an_acknowledged_message_is_gone() -> None:
    """Ending the lease of an acknowledged message has no effect any more."""
    source = subscription()
    source.add(["a"])
    (delivery,) = source.take("one", max_messages=1)
    source.acknowledge([delivery.ack_id, "unknown"])
    source.modify_ack_deadline([delivery.ack_id], 0)
    assert take(source) == []


def test_a_refused_message_comes_again_first() -> None:
    """A deadline of 0 refuses a message: it is delivered again, with another ack id."""
    source = subscription()
    source.add(["a", "b"])
    (delivery,) = source.take("one", max_messages=1)
    source.modify_ack_deadline([delivery.ack_id], 0)
    (again,) = source.take("two", max_messages=1, timeout=0)
    assert again.message == "a"
    assert again.ack_id != delivery.ack_id


def test_a_message_comes_again_after_its_deadline() -> None:
    """A consumer that waits gets the message as soon as another's lease ends."""
    source = subscription()
    source.add(["a"])
    assert source.take("one", max_messages=1, ack_deadline=0.01)
    assert [d.message for d in source.take("two", max_messages=1, timeout=10)] == ["a"]


def test_a_prolonged_lease_goes_on() -> None:
    """A longer deadline stands in for the first one."""
    source = subscription()
    source.add(["a"])
    (delivery,) = source.take("one", max_messages=1, ack_deadline=0.001)
    source.modify_ack_deadline([delivery.ack_id], 600)
    assert source.take("two", max_messages=1, timeout=0.02) == []


def test_a_consumer_gets_no_more_than_it_can_hold() -> None:
    """A consumer with its limit of outstanding messages waits until it acknowledges one."""
    source = subscription()
    source.add(["a", "b", "c"])
    first, _ = source.take("one", max_messages=10, max_outstanding=2)
    assert take(source, outstanding=2) == []
    source.acknowledge([first.ack_id])
    assert take(source, outstanding=2) == ["c"]


def test_closing_ends_waiting() -> None:
    """A closed subscription gives nothing, at once."""
    source = subscription()
    source.add(["a"])
    source.close()
    assert source.take("one", max_messages=1) == []


def test_a_cancelled_consumer_gets_nothing() -> None:
    """A message is not leased to a consumer that is gone."""
    source = subscription()
    source.add(["a"])
    assert source.take("one", max_messages=1, cancelled=lambda: True) == []
    assert take(source) == ["a"]


def test_clear_forgets_waiting_and_leased_messages() -> None:
    """After a clear nothing is delivered, neither new nor again."""
    source = subscription()
    source.add(["a", "b"])
    (delivery,) = source.take("one", max_messages=1)
    source.clear()
    source.modify_ack_deadline([delivery.ack_id], 0)
    assert take(source) == []
