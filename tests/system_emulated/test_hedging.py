"""What hedging takes for granted about a server: Google's emulator, and ours."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgedPublisher, HedgingSettings
from tests.system_emulated.scene import Message, Scene, observed_transport


@pytest.fixture(params=["own_server", "emulator"])
def address(request: pytest.FixtureRequest) -> str:
    """The address of the server under test."""
    return str(request.getfixturevalue(request.param))


class LosesAnswers(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]
    """Loses the answer to the next request when told to, after the server has stored it."""

    def __init__(self) -> None:
        self.lose_next = False
        self.call = Mock(spec_set=["add_done_callback", "cancel"])  # never done
        self.lost: list[str] = []  # the ids in the answer

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Pass a call on, and its answer back or not."""
        call = continuation(details, request)
        if not self.lose_next:
            return call
        self.lose_next = False
        self.lost.extend(call.result(timeout=60).message_ids)
        return self.call


def test_a_lost_answer(address: str) -> None:
    """The hedge's answer counts; both copies are stored, the same but for their message ids.

    A server does not recognise a repeated request: that is why hedging can duplicate.
    """
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
    loses.call.cancel.assert_called_once_with()
    stored = list(scene.messages.values())
    assert stored.count((b"data", {"key": "value"}, "")) == 2
    assert len(stored) == 7


@pytest.mark.parametrize("settings", [None, HedgingSettings()], ids=["hedging_off", "hedging_on"])
def test_thousands_of_messages(settings: HedgingSettings | None, address: str) -> None:
    """Each of two thousand messages is received, under the id that its future has."""
    bodies = [f"message {number}".encode() for number in range(2_000)]
    sent: dict[str, Message] = {}
    hedges: list[int] = []

    def program(scene: Scene) -> None:
        batch_settings = BatchSettings(max_messages=100, max_latency=0.05)
        with HedgedPublisher(batch_settings, hedging_settings=settings) as publisher:
            futures = [publisher.publish(scene.topic, body) for body in bodies]
        for future, body in zip(futures, bodies, strict=True):
            sent[future.result(timeout=60)] = (body, {}, "")
        scene.ids.update(sent)
        hedges.append(publisher.hedging_stats().hedges_sent)

    scene = Scene(HedgedPublisher, address)
    scene.observe(program)
    assert len(sent) == len(bodies)
    assert sent.items() <= scene.messages.items()
    # A machine that is this slow gets duplicates, which is what hedging costs.
    assert len(scene.messages) - len(bodies) <= sum(hedges) * 100
    assert {data for data, _, _ in scene.messages.values()} == set(bodies)
