"""Test your own publishing code against a server that misbehaves: ``pytest own_tests.py``."""

from collections.abc import Iterator

import pytest
from google.cloud.pubsub_v1 import PublisherClient

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer, Stall, Status

# The fixture ``pubsub_server``: a fresh server for each test, to which every client connects.
pytest_plugins = ["hedged_pubsub.testing.pytest_plugin"]


def announce(publisher: PublisherClient, topic: str, name: str) -> str:
    """The code under test; it takes the official client or a hedged one."""
    message_id: str = publisher.publish(topic, b"hello", name=name).result(timeout=10)
    return message_id


@pytest.fixture
def publisher(pubsub_server: PubSubServer) -> Iterator[HedgedPublisher]:
    """A hedged publisher that talks to the test's server and has earned a few hedges."""
    settings = HedgingSettings(hedge_delay=0.1, refill_ratio=0.2)
    with HedgedPublisher(hedging_settings=settings) as client:
        for _ in range(10):
            announce(client, pubsub_server.topic_path("greetings"), "nobody")
        pubsub_server.clear()
        yield client


def test_the_message_arrives(pubsub_server: PubSubServer, publisher: HedgedPublisher) -> None:
    """The server shows what was stored."""
    announce(publisher, pubsub_server.topic_path("greetings"), "Ada")

    (message,) = pubsub_server.messages("greetings")
    assert message.data == b"hello"
    assert dict(message.attributes) == {"name": "Ada"}


def test_a_short_outage_is_survived(
    pubsub_server: PubSubServer, publisher: HedgedPublisher
) -> None:
    """Two requests are refused; the client's own retry gets the message through."""
    pubsub_server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=2)]))

    announce(publisher, pubsub_server.topic_path("greetings"), "Grace")

    assert len(pubsub_server.messages("greetings")) == 1


def test_a_stalled_request_is_overtaken(
    pubsub_server: PubSubServer, publisher: HedgedPublisher
) -> None:
    """The first request hangs for half a minute; a hedge delivers the message all the same."""
    pubsub_server.set_script(FaultScript(faults=[Stall(30.0, calls=[1])]))

    announce(publisher, pubsub_server.topic_path("greetings"), "Katherine")

    assert publisher.hedging_stats().hedges_won == 1
    assert [attempt.attempt_number for attempt in pubsub_server.attempts("greetings")] == [0, 1]
