"""A server behind a proxy, and publishing on a schedule."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hedged_pubsub import HedgingSettings
from hedged_pubsub.testing import ProxyConnection, PubSubServer, TcpProxy

from ..conftest import wait_until

SETTINGS = HedgingSettings(hedge_delay=0.1, refill_ratio=0.2)
"""The shortest delay, and as many hedges as there may be."""

MOST_CONNECTIONS = 3
"""One that is lost, or was, its replacement, and the other one."""

TOKENS = 15
"""Earned before a fault: more than hedging needs until it publishes on another connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a test of connections plays on; clients made in the test connect to the proxy."""

    proxy: TcpProxy
    topic: str
    server: PubSubServer | None = None  # behind the proxy, if it keeps records

    @property
    def open_connections(self) -> int:
        """How many connections clients have open."""
        return sum(connection.is_open for connection in self.proxy.connections)


@dataclass(slots=True)
class Run:
    """What became of messages that were published on a schedule."""

    publishes: int
    latencies: dict[int, float] = field(default_factory=dict)  # seconds to success, by number
    errors: list[BaseException] = field(default_factory=list)
    _ended: threading.Condition = field(default_factory=threading.Condition)

    def wait(self, timeout: float) -> None:
        """Wait until all have ended, and fail if they do not."""
        with self._ended:
            in_time = self._ended.wait_for(
                lambda: len(self.latencies) + len(self.errors) == self.publishes, timeout
            )
            assert in_time, f"{len(self.latencies)} of {self.publishes} answered"

    def all(self) -> list[float]:
        """Wait for all, check that none failed, and return the latencies in order."""
        self.wait(timeout=20)
        assert not self.errors
        return [self.latencies[number] for number in range(self.publishes)]

    def record(self, number: int, start: float) -> Callable[[Any], None]:
        """Return a callback for a future."""

        def ended(future: Any) -> None:
            latency = time.monotonic() - start
            error = future.exception()
            with self._ended:
                if error is None:
                    self.latencies[number] = latency
                else:
                    self.errors.append(error)
                self._ended.notify_all()

        return ended


def publish(
    publisher: Any, topic: str, *, publishes: int = 15, interval: float = 0.1, size: int = 100
) -> Run:
    """Publish so many messages, each at its time, whatever became of those before it."""
    run = Run(publishes)
    start = time.monotonic()
    for number in range(publishes):
        time.sleep(max(0.0, start + number * interval - time.monotonic()))
        data = b"%d" % number
        before = time.monotonic()
        future = publisher.publish(topic, data.ljust(size))
        future.add_done_callback(run.record(number, before))
    return run


def settle(
    publisher: Any, scene: Scene, broken: ProxyConnection, *, last: int = 5, size: int = 100
) -> None:
    """Publish, and check that the broken connection is soon not felt any more.

    A hedge saves the first message; the originals of the last ones come over another connection.
    """
    latencies = publish(publisher, scene.topic, size=size).all()
    assert latencies[0] < 2
    if scene.server is None:
        assert max(latencies[-last:]) < SETTINGS.initial_hedge_delay
        return
    peers = {one.number: one.peer for one in scene.server.attempts(scene.topic)}
    elsewhere, numbers = set(), set()
    for message in scene.server.messages(scene.topic):
        numbers.add(int(message.data))
        connection = scene.proxy.connection_of(peers[message.call])
        if message.attempt_number == 0 and connection is not broken:
            elsewhere.add(int(message.data))
    assert numbers == set(range(len(latencies)))
    assert elsewhere >= set(range(len(latencies) - last, len(latencies)))


def connections_of(publisher: Any, scene: Scene) -> tuple[ProxyConnection, ProxyConnection]:
    """Publish some messages; return the connection they went over, and the latest other one."""
    connections = scene.proxy.connections
    before = {one: one.delivered("upstream") for one in connections}
    publish(publisher, scene.topic, publishes=5, interval=0.01, size=2000).all()
    *others, busiest = sorted(before, key=lambda one: one.delivered("upstream") - before[one])
    if scene.server is not None:
        scene.server.clear()
    return busiest, max(others, key=connections.index)


def warm_up(publisher: Any, scene: Scene, *, connections: int = 2) -> None:
    """Publish until the connections are there and the tokens are earned."""
    give_up = time.monotonic() + 20
    tokens = TOKENS if connections > 1 else 0
    while scene.open_connections < connections or publisher.hedging_stats().tokens < tokens:
        publisher.publish(scene.topic, b"warm-up").result(timeout=10)
        assert time.monotonic() < give_up, scene.proxy.connections
    # The second one has said hello, and was answered.
    wait_until(lambda: all(c.delivered("downstream") for c in scene.proxy.connections))
    if scene.server is not None:
        scene.server.clear()
