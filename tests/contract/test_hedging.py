"""A hedge rescues a message whose answer is lost, and leaves a duplicate, at either server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgedPublisher, HedgingSettings
from tests.contract.receiving import receive, received
from tests.contract.sent import observed_transport


class Unanswered:
    """A call whose answer never comes; it can only be cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Take note of nothing: it is never done."""

    def cancel(self) -> bool:
        """Take note that nobody waits any more."""
        self.cancelled = True
        return True


class LosesAnswers(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Loses the answer to the next request when told to, after the server has stored it.

    Attributes:
        lose_next: Whether to.
        lost: The message ids of the lost answer.
        call: What the publisher got for it.
    """

    def __init__(self) -> None:
        self.lose_next = False
        self.lost: list[str] = []
        self.call = Unanswered()

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Pass a call on, and its answer back or not."""
        call = continuation(details, request)
        if not self.lose_next:
            return call
        self.lose_next = False
        self.lost.extend(call.result(timeout=60).message_ids)
        return self.call


def test_a_lost_answer(
    peer: str, subscriber: SubscriberClient, topic: str, subscription: str
) -> None:
    """The hedge's answer counts; both copies are stored, the same but for their message ids."""
    loses = LosesAnswers()
    with HedgedPublisher(
        BatchSettings(max_messages=1),
        hedging_settings=HedgingSettings(hedge_delay=0.1, max_tokens=1, refill_ratio=0.2),
        transport=observed_transport(peer, loses),
    ) as publisher:
        earning = {publisher.publish(topic, b"earn").result(timeout=60) for _ in range(5)}
        loses.lose_next = True
        message_id = publisher.publish(topic, b"data", key="value").result(timeout=60)
        stats = publisher.hedging_stats(topic)

    messages = receive(subscriber, subscription, 7)
    assert [message_id] != loses.lost
    assert messages.keys() == {*earning, message_id, *loses.lost}
    for copy in (message_id, *loses.lost):
        assert messages[copy] == received(b"data", {"key": "value"})
    assert stats.hedges_sent == stats.hedges_won == 1
    assert loses.call.cancelled
