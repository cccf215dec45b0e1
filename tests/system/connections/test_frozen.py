"""A connection that is frozen for good, as when a NAT entry has vanished.

``tests/system_emulated`` runs these on Google's emulator, too.
"""

from __future__ import annotations

import time

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub import HedgingSettings
from hedged_pubsub.testing import Direction

from ..conftest import ONE_MESSAGE, wait_until
from .conftest import MakePublisher
from .scene import SETTINGS, Scene, connections_of, publish

MOST_CONNECTIONS = 3


def test_publishing_settles_below_the_hedge_delay(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """The first hedge saves the first message, and soon the originals themselves arrive."""
    publisher = make_publisher()
    originals, _ = connections_of(publisher, scene)
    originals.freeze()

    latencies = publish(publisher, scene.topic).all()

    assert latencies[0] < 0.35
    assert max(latencies[-10:]) < SETTINGS.initial_hedge_delay
    assert scene.proxy.max_open <= MOST_CONNECTIONS
    if scene.server is not None:
        stored = {int(message.data) for message in scene.server.messages()}
        assert stored == set(range(50))


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["upstream", "downstream"])
def test_half_a_frozen_connection_is_no_better(
    scene: Scene, make_publisher: MakePublisher, direction: Direction
) -> None:
    """Whether requests are lost or answers, publishing settles below the hedge delay."""
    publisher = make_publisher()
    originals, _ = connections_of(publisher, scene)
    originals.freeze(direction)

    latencies = publish(publisher, scene.topic, publishes=20).all()

    assert latencies[0] < 0.35
    assert max(latencies[-10:]) < SETTINGS.initial_hedge_delay


@pytest.mark.slow
def test_the_official_client_answers_nothing(scene: Scene) -> None:
    """What the tests above are measured against; a thaw releases it."""
    with pubsub_v1.PublisherClient(ONE_MESSAGE) as publisher:
        publisher.publish(scene.topic, b"warm-up").result(timeout=10)
        scene.proxy.connections[0].freeze()
        start = time.monotonic()
        run = publish(publisher, scene.topic, interval=0.05)
        time.sleep(max(0.0, start + 4 - time.monotonic()))
        assert not run.latencies
        assert not run.errors
        scene.proxy.connections[0].thaw()
        run.all()


def test_without_a_second_connection_hedges_are_frozen_too(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """``second_connection=False`` sends everything on one connection, which is then stuck."""
    settings = HedgingSettings(hedge_delay=0.1, refill_ratio=0.2, second_connection=False)
    publisher = make_publisher(hedging_settings=settings, connections=1)
    while publisher.hedging_stats().tokens < 5:
        publisher.publish(scene.topic, b"warm-up").result(timeout=10)
    (connection,) = scene.proxy.connections
    connection.freeze()

    run = publish(publisher, scene.topic, publishes=10)
    time.sleep(1)
    assert not run.latencies
    assert publisher.hedging_stats().hedges_sent >= 5
    connection.thaw()
    run.all()
    assert scene.proxy.max_open == 1


@pytest.mark.slow
def test_after_a_thaw_no_connection_leaks(scene: Scene, make_publisher: MakePublisher) -> None:
    """However often connections freeze and thaw, there are never more than three."""
    publisher = make_publisher()
    for number in range(3):
        for connection in scene.proxy.connections:
            connection.thaw()
        originals, _ = connections_of(publisher, scene)
        originals.freeze()
        latencies = publish(publisher, scene.topic, publishes=20).all()
        assert max(latencies[-5:]) < SETTINGS.initial_hedge_delay, (number, latencies)
        publish(publisher, scene.topic, publishes=40, interval=0.005).all()  # earns tokens
    for connection in scene.proxy.connections:
        connection.thaw()
    publish(publisher, scene.topic, publishes=10).all()

    assert scene.proxy.max_open <= MOST_CONNECTIONS
    assert scene.open_connections <= MOST_CONNECTIONS
    publisher.close(timeout=5)
    wait_until(lambda: scene.open_connections == 0)
