"""Receiving what was published, with the official subscriber client."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.cloud.pubsub_v1 import SubscriberClient

_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as a subscriber gets it."""

    data: bytes
    attributes: tuple[tuple[str, str], ...]


def received(data: bytes, attributes: Mapping[str, str]) -> Received:
    """Make one to compare with; the order of attributes has no meaning."""
    return Received(data=data, attributes=tuple(sorted(attributes.items())))


def receive(subscriber: SubscriberClient, subscription: str, count: int) -> dict[str, Received]:
    """Receive and acknowledge messages until there are enough.

    Args:
        subscriber: The official client.
        subscription: The full path of the subscription.
        count: How many different messages to wait for.

    Returns:
        The messages by their id.

    Raises:
        TimeoutError: If fewer have come in time.
    """
    messages: dict[str, Received] = {}
    enough = threading.Event()

    def take(message: Any) -> None:
        messages[message.message_id] = received(message.data, message.attributes)
        message.ack()
        if len(messages) >= count:
            enough.set()

    pull = subscriber.subscribe(subscription, take)
    try:
        if not enough.wait(_TIMEOUT_SECONDS):
            raise TimeoutError(f"{len(messages)} of {count} messages after {_TIMEOUT_SECONDS:g} s")
    finally:
        pull.cancel()
        pull.result(_TIMEOUT_SECONDS)
    return dict(messages)
