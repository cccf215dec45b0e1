"""Connections that break, crawl or cannot be opened; and which attempts use which."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError

import grpc
import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, ProxyConnection, PubSubServer, Stall

from ..conftest import ONE_MESSAGE, Make, wait_until
from .scene import MOST_CONNECTIONS, SETTINGS, Scene, connections_of, publish, settle

pytestmark = pytest.mark.slow

RETRY = Retry(
    if_exception_type(exceptions.ServiceUnavailable, exceptions.DeadlineExceeded),
    initial=0.1,
    maximum=0.2,
    timeout=20,
)


def server_of(scene: Scene) -> PubSubServer:
    """Return the server, which keeps records."""
    assert scene.server is not None
    return scene.server


def attempts_on(scene: Scene, connection: ProxyConnection) -> list[int | None]:
    """Return the numbers of the attempts that came over a connection."""
    return [
        attempt.attempt_number
        for attempt in server_of(scene).attempts(scene.topic)
        if scene.proxy.connection_of(attempt.peer) is connection
    ]


def test_only_hedges_use_the_second_connection(scene: Scene, make: Make) -> None:
    """Two connections; a slow service is no dead one: originals stay where they are."""
    publisher = make()
    first, second = connections_of(publisher, scene)
    before = publisher.hedging_stats().hedges_sent
    stall = Stall(0.4, attempts=[0], calls=range(5, 45, 5))
    server_of(scene).set_script(FaultScript(faults=[stall]))
    publish(publisher, scene.topic, publishes=40, interval=0.02).all()

    hedges = publisher.hedging_stats().hedges_sent - before
    on_second = attempts_on(scene, second)
    assert attempts_on(scene, first) == [0] * 40
    assert not {0, None}.intersection(on_second)
    # A hedge that is cancelled while it leaves need not reach the server.
    assert 5 <= len(on_second) <= hedges
    assert len(scene.proxy.connections) == scene.open_connections == 2


def test_a_channel_of_the_users_is_the_only_one(scene: Scene) -> None:
    """Who passes a ready channel gets no second connection: hedges use that channel."""
    channel = grpc.insecure_channel(scene.proxy.address)
    transport = PublisherGrpcTransport(channel=channel)
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=SETTINGS, transport=transport) as publisher:
        publish(publisher, scene.topic, publishes=40, interval=0.005).all()
        script = FaultScript(faults=[Stall(5, attempts=[0])])
        server_of(scene).set_script(script)
        publish(publisher, scene.topic, publishes=2, interval=0.1).all()
        assert publisher.hedging_stats().hedges_won >= 2
    assert len(scene.proxy.connections) == 1


@pytest.mark.parametrize(
    "fault", [ProxyConnection.reset, ProxyConnection.half_close], ids=["reset", "half-close"]
)
def test_a_broken_connection_loses_nothing(
    scene: Scene, make: Make, fault: Callable[[ProxyConnection], None]
) -> None:
    """Whichever of the connections breaks in the middle, every message arrives and soon."""
    publisher = make()
    for number in range(2):
        connection = connections_of(publisher, scene)[number]
        before = publish(publisher, scene.topic, publishes=5, interval=0.02)
        fault(connection)
        after = publish(publisher, scene.topic, publishes=10, interval=0.02)
        assert max(before.all() + after.all()) < 5
    assert scene.open_connections <= MOST_CONNECTIONS
    assert scene.proxy.max_open <= MOST_CONNECTIONS


# At 1 kB a second each request of 2 kB takes longer than the one before.
@pytest.mark.parametrize(
    ("kind", "fault"), [("sync", "narrow"), ("asyncio", "two seconds of latency")]
)
def test_a_slow_connection_is_not_felt_for_long(scene: Scene, make: Make, fault: str) -> None:
    """Answers that come too late are as good as none."""
    publisher = make()
    originals, _ = connections_of(publisher, scene)
    if fault == "narrow":
        originals.limit(1000)
    else:
        originals.delay(2)
    settle(publisher, scene, originals, size=2000 if fault == "narrow" else 100)
    assert scene.proxy.max_open <= MOST_CONNECTIONS


def test_an_endpoint_that_never_answers_ends_the_publish(scene: Scene, make: Make) -> None:
    """The future fails with the error of the last retry, in time; so does the close."""
    scene.proxy.accept(frozen=True)
    publisher = make(connections=0)
    future = publisher.publish(scene.topic, b"data", retry=RETRY.with_timeout(0.8), timeout=0.3)
    error = future.exception(timeout=10)
    assert isinstance(error, exceptions.GoogleAPICallError | exceptions.RetryError)
    publisher.close(timeout=5)


def test_an_endpoint_that_comes_back_is_published_to(scene: Scene, make: Make) -> None:
    """Refused at first, the message is stored once the port is open."""
    scene.proxy.refuse()
    publisher = make(connections=0)
    future = publisher.publish(scene.topic, b"data", retry=RETRY, timeout=0.5)
    time.sleep(0.2)
    scene.proxy.accept()
    future.result(timeout=20)
    assert [message.data for message in server_of(scene).messages(scene.topic)] == [b"data"]


def test_a_close_while_reconnecting_ends_in_time(scene: Scene, make: Make) -> None:
    """With no new connection answered, the one that is left carries all; closing leaves nothing.

    It takes its timeout. What gRPC had begun to connect, it gives up by itself within 20 seconds.
    """
    make().close(timeout=5)  # starts the threads that all publishers share
    wait_until(lambda: scene.open_connections == 0)
    threads = threading.active_count()

    publisher = make()
    originals, hedges = connections_of(publisher, scene)
    scene.proxy.accept(frozen=True)
    originals.freeze()
    settle(publisher, scene, originals)
    hedges.reset()
    stuck = publisher.publish(scene.topic, b"stuck")
    with pytest.raises((FutureTimeoutError, TimeoutError)):
        publisher.close(timeout=0.3)
    assert isinstance(stuck.exception(timeout=5), RuntimeError)
    wait_until(lambda: not (originals.is_open or hedges.is_open))
    wait_until(lambda: threading.active_count() <= threads, timeout=25)


@pytest.mark.parametrize(("kind", "idle"), [("sync", False), ("asyncio", True)])
def test_a_second_connection_that_was_closed_is_there_again_before_a_hedge(
    scene: Scene, make: Make, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """Servers close idle connections; while batches are sent, or from the next one on, it is back.

    Nobody connects for a publisher that sends nothing.
    """
    monkeypatch.setattr("hedged_pubsub._core.connections.CHECK_INTERVAL", 0.1)
    # So that no hedge is what connects.
    publisher = make(hedging_settings=HedgingSettings(hedge_delay=5, refill_ratio=0.2))
    _, hedges = connections_of(publisher, scene)
    before = len(scene.proxy.connections)
    hedges.reset()
    if idle:
        time.sleep(0.3)
        after = len(scene.proxy.connections)
        time.sleep(0.3)
        assert len(scene.proxy.connections) == after <= before + 1
    publish(publisher, scene.topic, publishes=20, interval=0.02).all()
    wait_until(lambda: scene.open_connections == 2)
    assert len(scene.proxy.connections) == before + 1
    assert publisher.hedging_stats().hedges_sent == 0
