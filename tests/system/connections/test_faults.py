"""Connections that break, crawl or cannot be opened; and which attempts travel on which."""

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

import hedged_pubsub._sync.rpc as sync_rpc
import hedged_pubsub.aio.rpc as asyncio_rpc
from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, ProxyConnection, PubSubServer, Stall

from ..conftest import ONE_MESSAGE, wait_until
from .conftest import MakePublisher
from .scene import SETTINGS, Scene, connections_of, publish

pytestmark = pytest.mark.slow

MOST_CONNECTIONS = 3
SHORT_RETRY = Retry(
    if_exception_type(exceptions.ServiceUnavailable, exceptions.DeadlineExceeded),
    initial=0.1,
    maximum=0.2,
    timeout=1.5,
)


def server_of(scene: Scene) -> PubSubServer:
    """Return the server, which keeps records."""
    assert scene.server is not None
    return scene.server


def attempts_on(scene: Scene, connection: ProxyConnection) -> list[int | None]:
    """Return the numbers of the attempts that came over a connection."""
    return [
        attempt.attempt_number
        for attempt in server_of(scene).attempts()
        if scene.proxy.connection_of(attempt.peer) is connection
    ]


def test_without_a_fault_only_hedges_use_the_second_connection(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """Two connections, and on the second one as many requests as there were hedges."""
    publisher = make_publisher()
    first, second = connections_of(publisher, scene)
    before = publisher.hedging_stats().hedges_sent
    publish(publisher, scene.topic, interval=0.01).all()

    hedges = publisher.hedging_stats().hedges_sent - before
    assert attempts_on(scene, first) == [0] * 50
    assert len(attempts_on(scene, second)) == hedges
    assert len(scene.proxy.connections) == scene.open_connections == 2


def test_hedges_of_slow_requests_use_the_second_connection(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """A slow service is no dead connection: originals stay where they are."""
    publisher = make_publisher()
    first, second = connections_of(publisher, scene)
    before = publisher.hedging_stats().hedges_sent
    script = FaultScript(faults=[Stall(0.6, attempts=[0], calls=range(5, 60, 5))])
    server_of(scene).set_script(script)
    publish(publisher, scene.topic, interval=0.05).all()

    hedges = publisher.hedging_stats().hedges_sent - before
    assert hedges >= 5
    assert attempts_on(scene, first) == [0] * 50
    assert len(attempts_on(scene, second)) == hedges
    assert not {0, None}.intersection(attempts_on(scene, second))
    assert len(scene.proxy.connections) == 2


def test_a_channel_of_the_users_is_the_only_one(scene: Scene) -> None:
    """Who passes a ready channel gets no second connection: hedges use that channel."""
    channel = grpc.insecure_channel(scene.proxy.address)
    transport = PublisherGrpcTransport(channel=channel)
    with HedgedPublisher(ONE_MESSAGE, hedging_settings=SETTINGS, transport=transport) as publisher:
        publish(publisher, scene.topic, interval=0.005).all()
        script = FaultScript(faults=[Stall(5, attempts=[0])])
        server_of(scene).set_script(script)
        publish(publisher, scene.topic, publishes=2).all()
        assert publisher.hedging_stats().hedges_won >= 2
    assert len(scene.proxy.connections) == 1


@pytest.mark.parametrize(
    "fault", [ProxyConnection.reset, ProxyConnection.half_close], ids=["reset", "half-close"]
)
def test_a_broken_connection_loses_nothing(
    scene: Scene, make_publisher: MakePublisher, fault: Callable[[ProxyConnection], None]
) -> None:
    """Whichever of the connections breaks in the middle, every message arrives and soon."""
    publisher = make_publisher()
    for number in range(2):
        connection = connections_of(publisher, scene)[number]
        run = publish(publisher, scene.topic, publishes=5, interval=0.02)
        fault(connection)
        latencies = run.all() + publish(publisher, scene.topic, publishes=20).all()
        assert max(latencies) < 2
        assert max(latencies[-5:]) < SETTINGS.initial_hedge_delay
    assert scene.open_connections <= MOST_CONNECTIONS
    assert scene.proxy.max_open <= MOST_CONNECTIONS


def test_two_seconds_of_latency_on_one_connection_are_not_felt_for_long(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """Answers that come too late are as good as none."""
    publisher = make_publisher()
    originals, _ = connections_of(publisher, scene)
    originals.delay(2)
    latencies = publish(publisher, scene.topic, publishes=25).all()
    assert latencies[0] < 0.35
    assert max(latencies[-10:]) < SETTINGS.initial_hedge_delay
    assert scene.proxy.max_open <= MOST_CONNECTIONS


def test_a_narrow_connection_is_not_felt_for_long(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """At 1 kB a second each request of 2 kB takes longer than the one before."""
    publisher = make_publisher()
    originals, _ = connections_of(publisher, scene)
    originals.limit(1000)
    latencies = publish(publisher, scene.topic, publishes=25, size=2000).all()
    assert latencies[0] < 0.35
    assert max(latencies[-10:]) < SETTINGS.initial_hedge_delay
    assert scene.proxy.max_open <= MOST_CONNECTIONS


@pytest.mark.parametrize("answers", ["refused", "never"])
def test_an_endpoint_that_cannot_be_reached_ends_the_publish(
    scene: Scene, make_publisher: MakePublisher, answers: str
) -> None:
    """The future fails with the error of the last retry, in time; so does the close."""
    if answers == "refused":
        scene.proxy.refuse()
    else:
        scene.proxy.accept(frozen=True)
    publisher = make_publisher(connections=0)
    start = time.monotonic()
    future = publisher.publish(scene.topic, b"data", retry=SHORT_RETRY, timeout=0.5)
    error = future.exception(timeout=10)
    assert isinstance(error, exceptions.GoogleAPICallError | exceptions.RetryError)
    publisher.close(timeout=5)
    assert time.monotonic() - start < 6


def test_an_endpoint_that_comes_back_is_published_to(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """Refused at first, the message is stored once the port is open."""
    scene.proxy.refuse()
    publisher = make_publisher(connections=0)
    future = publisher.publish(scene.topic, b"data", timeout=0.5)
    time.sleep(0.5)
    scene.proxy.accept()
    future.result(timeout=20)
    assert [message.data for message in server_of(scene).messages()] == [b"data"]


def test_nothing_waits_for_a_connection_that_does_not_come_up(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """With one connection frozen and no new one answered, the one that is left carries all."""
    publisher = make_publisher()
    originals, _ = connections_of(publisher, scene)
    scene.proxy.accept(frozen=True)
    originals.freeze()
    latencies = publish(publisher, scene.topic, publishes=20).all()
    assert max(latencies) < 1
    assert max(latencies[-10:]) < SETTINGS.initial_hedge_delay


def test_a_close_while_reconnecting_ends_in_time(
    scene: Scene, make_publisher: MakePublisher
) -> None:
    """With no new connection answered, closing takes its timeout and leaves nothing behind.

    But what gRPC had begun to connect: that it gives up by itself, within 20 seconds.
    """
    make_publisher().close(timeout=5)  # starts the threads that all publishers share
    wait_until(lambda: scene.open_connections == 0)
    threads = threading.active_count()

    publisher = make_publisher()
    originals, hedges = connections_of(publisher, scene)
    scene.proxy.accept(frozen=True)
    originals.freeze()
    publish(publisher, scene.topic, publishes=15)  # after some, on the connection of the hedges
    hedges.reset()
    stuck = publisher.publish(scene.topic, b"stuck")
    start = time.monotonic()
    with pytest.raises((FutureTimeoutError, TimeoutError)):
        publisher.close(timeout=1)

    assert time.monotonic() - start < 3
    assert isinstance(stuck.exception(timeout=1), RuntimeError)
    wait_until(lambda: not (originals.is_open or hedges.is_open))
    wait_until(lambda: threading.active_count() <= threads)


@pytest.mark.parametrize("idle", [False, True])
def test_a_second_connection_that_was_closed_is_there_again_before_a_hedge(
    scene: Scene, make_publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """Servers close idle connections; while batches are sent, or from the next one on, it is back.

    Nobody connects for a publisher that sends nothing.
    """
    for module in (sync_rpc, asyncio_rpc):
        monkeypatch.setattr(module, "LOOK_INTERVAL", 0.1)
    publisher = make_publisher()
    _, hedges = connections_of(publisher, scene)
    before = len(scene.proxy.connections)
    hedges.reset()
    if idle:
        time.sleep(1)
        after = len(scene.proxy.connections)
        time.sleep(1)
        assert len(scene.proxy.connections) == after <= before + 1
    publish(publisher, scene.topic, publishes=20, interval=0.02).all()
    wait_until(lambda: scene.open_connections == 2)
    assert len(scene.proxy.connections) == before + 1
    assert publisher.hedging_stats().hedges_sent == 0
