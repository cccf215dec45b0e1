"""What hedging takes for granted about a server, and what it comes to, at either server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.cloud.pubsub_v1 import PublisherClient
from google.cloud.pubsub_v1.types import BatchSettings
from google.pubsub_v1.types import PublishRequest, PubsubMessage

from hedged_pubsub import HedgedPublisher, HedgingSettings
from tests.system_emulated.scene import Scene, observed_transport


class LosesAnswers(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Loses the answer to the next request when told to, after the server has stored it."""

    def __init__(self) -> None:
        self.lose_next = False
        self.cancelled = False  # by the publisher; otherwise the call never ends
        self.lost: list[str] = []  # the ids in the answer

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Pass a call on, and its answer back or not."""
        call = continuation(details, request)
        if not self.lose_next:
            return call
        self.lose_next = False
        self.lost.extend(call.result(timeout=60).message_ids)
        return self

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Be a call that is never done."""

    def cancel(self) -> bool:
        """Be a call that can be cancelled."""
        self.cancelled = True
        return True


def test_a_lost_answer(address: str) -> None:
    """The hedge's answer counts; both copies are stored, the same but for their message ids."""
    loses = LosesAnswers()
    scene = Scene(HedgedPublisher, address)

    def program(scene: Scene) -> None:
        with HedgedPublisher(
            BatchSettings(max_messages=1),
            hedging_settings=HedgingSettings(hedge_delay=0.1, max_tokens=1, refill_ratio=0.2),
            transport=observed_transport(address, loses),
        ) as publisher:
            earning = [publisher.publish(scene.topic, b"earn") for _ in range(5)]
            scene.outcome("earn", *earning)
            loses.lose_next = True
            scene.outcome("lose", publisher.publish(scene.topic, b"data", key="value"))
            scene.ids.update(loses.lost)
            stats = publisher.hedging_stats(scene.topic)
        assert stats.hedges_sent == stats.hedges_won == 1

    scene.observe(program)
    assert loses.cancelled
    stored = list(scene.messages.values())
    assert stored.count((b"data", {"key": "value"}, "")) == 2
    assert len(stored) == 7


def test_the_same_request_twice_is_stored_twice(address: str) -> None:
    """A server does not recognise a repeated request: that is why hedging can duplicate."""

    def program(scene: Scene) -> None:
        transport = scene.make().transport
        request = PublishRequest(topic=scene.topic, messages=[PubsubMessage(data=b"once")])
        telemetry = [("x-goog-pubsub-client-telemetry", "CgIIAQ==")]  # of a first hedge
        for metadata in ([], telemetry):
            answer = transport.publish(request, timeout=30, metadata=metadata)
            scene.ids.update(answer.message_ids)

    scene = Scene(PublisherClient, address)
    scene.observe(program)
    assert [data for data, _, _ in scene.messages.values()] == [b"once"] * 2


@pytest.mark.parametrize("settings", [None, HedgingSettings()], ids=["hedging_off", "hedging_on"])
def test_ten_thousand_messages(settings: HedgingSettings | None, address: str) -> None:
    """Each of ten thousand messages is received, under the id that its future has."""
    bodies = [f"message {number}".encode() for number in range(10_000)]
    ids: list[str] = []
    hedges = 0

    def program(scene: Scene) -> None:
        nonlocal hedges
        batch_settings = BatchSettings(max_messages=100, max_latency=0.05)
        with HedgedPublisher(batch_settings, hedging_settings=settings) as publisher:
            futures = [publisher.publish(scene.topic, body) for body in bodies]
        ids.extend(future.result(timeout=60) for future in futures)
        scene.ids.update(ids)
        hedges = publisher.hedging_stats().hedges_sent

    scene = Scene(HedgedPublisher, address)
    scene.observe(program)
    assert [scene.messages[message_id] for message_id in ids] == [(b, {}, "") for b in bodies]
    # A machine that is this slow gets duplicates, which is what hedging costs.
    assert len(scene.messages) - len(bodies) <= hedges * 100
    assert {data for data, _, _ in scene.messages.values()} == set(bodies)
