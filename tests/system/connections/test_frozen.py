"""A connection that is frozen for good, as when a NAT entry has vanished.

``tests/system_emulated`` runs these on Google's emulator, too.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub import HedgingSettings
from hedged_pubsub.testing import Direction

from ..conftest import ONE_MESSAGE, Make, wait_until
from .scene import MOST_CONNECTIONS, Scene, connections_of, publish, settle, warm_up


def slow(kind: str, direction: Direction | None) -> Any:
    """Return a case that needs no coverage."""
    return pytest.param(kind, direction, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("kind", "direction"),
    [("sync", None), ("asyncio", None), slow("sync", "upstream"), slow("asyncio", "downstream")],
)
def test_publishing_settles_below_the_hedge_delay(
    scene: Scene, make: Make, direction: Direction | None
) -> None:
    """The first hedge saves the first message, and soon the originals themselves arrive.

    Half a frozen connection, which loses the requests or the answers, is no better.
    """
    publisher = make()
    originals, _ = connections_of(publisher, scene)
    originals.freeze(direction)
    settle(publisher, scene, originals)
    assert scene.proxy.max_open <= MOST_CONNECTIONS


@pytest.mark.slow
def test_the_official_client_answers_nothing(scene: Scene) -> None:
    """What the tests above are measured against; a thaw releases it."""
    with pubsub_v1.PublisherClient(ONE_MESSAGE) as publisher:
        publisher.publish(scene.topic, b"warm-up").result(timeout=10)
        scene.proxy.connections[0].freeze()
        run = publish(publisher, scene.topic, interval=0.02)
        time.sleep(0.5)
        assert not run.latencies
        assert not run.errors
        scene.proxy.connections[0].thaw()
        run.all()


def test_without_a_second_connection_hedges_are_frozen_too(scene: Scene, make: Make) -> None:
    """``second_connection=False`` sends everything on one connection, which is then stuck."""
    settings = HedgingSettings(hedge_delay=0.1, refill_ratio=0.2, second_connection=False)
    publisher = make(hedging_settings=settings, connections=1)
    while publisher.hedging_stats().tokens < 5:
        publisher.publish(scene.topic, b"warm-up").result(timeout=10)
    (connection,) = scene.proxy.connections
    connection.freeze()

    run = publish(publisher, scene.topic, publishes=10, interval=0.02)
    wait_until(lambda: publisher.hedging_stats().hedges_sent >= 5)
    time.sleep(0.2)  # in which they would be answered
    assert not run.latencies
    connection.thaw()
    run.all()
    assert scene.proxy.max_open == 1


@pytest.mark.slow
def test_after_a_thaw_no_connection_leaks(scene: Scene, make: Make) -> None:
    """However often connections freeze and thaw, there are never more than three."""
    publisher = make()
    for _ in range(2):
        for connection in scene.proxy.connections:
            connection.thaw()
        originals, _ = connections_of(publisher, scene)
        originals.freeze()
        settle(publisher, scene, originals)
        warm_up(publisher, scene)  # earns tokens
    for connection in scene.proxy.connections:
        connection.thaw()
    publish(publisher, scene.topic, publishes=10, interval=0.02).all()

    assert scene.proxy.max_open <= MOST_CONNECTIONS
    assert scene.open_connections <= MOST_CONNECTIONS
    publisher.close(timeout=5)
    wait_until(lambda: scene.open_connections == 0)
