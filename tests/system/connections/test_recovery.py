"""Connections that are lost, refused or hang: failover and one copy (R14, R17)."""

from __future__ import annotations

import time
from typing import Any

from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud.pubsub_v1.types import PublisherOptions

from hedged_pubsub import HedgingSettings
from hedged_pubsub.testing import FaultScript, Stall

from ..conftest import Make, wait_until
from .scene import Scene, connections_of, publish

SLOW_RETRY: Any = PublisherOptions(
    retry=Retry(
        if_exception_type(exceptions.ServiceUnavailable), initial=60, maximum=60, timeout=600
    )
)
NO_HEDGES = HedgingSettings(hedge_delay=10.0)


def test_r17_lost_connections_cost_no_backoff(scene: Scene, make: Make) -> None:
    """Thirty requests are in flight when their connection is reset: all are sent again at once."""
    publisher = make(publisher_options=SLOW_RETRY, hedging_settings=NO_HEDGES, connections=1)
    assert scene.server is not None
    busiest, _ = connections_of(publisher, scene)
    scene.server.set_script(FaultScript(faults=[Stall(30, times=30)]))
    futures = [publisher.publish(scene.topic, b"data") for _ in range(30)]
    server = scene.server
    wait_until(lambda: len(server.attempts(scene.topic)) == 30)
    before = time.monotonic()
    busiest.reset()
    for future in futures:
        future.result(timeout=10)
    assert time.monotonic() - before < 10
    assert publisher.hedging_stats().hedges_due == 0


def test_r17_back_within_a_second(scene: Scene, make: Make) -> None:
    """Nothing can be connected for five seconds; gRPC's own backoff would last on."""
    publisher = make(hedging_settings=NO_HEDGES, connections=1)
    scene.proxy.refuse()
    for connection in scene.proxy.connections:
        connection.reset()
    run = publish(publisher, scene.topic, publishes=50, interval=0.1)
    scene.proxy.accept()
    back = time.monotonic()
    run.wait(timeout=20)
    assert not run.errors
    # A second for the connection; the last ones were published when it was back, or almost.
    assert time.monotonic() - back < 5


def test_r14_connections_that_hang(scene: Scene, make: Make) -> None:
    """Accepted and not answered for three seconds: one copy of each batch, no token."""
    assert scene.server is not None
    scene.server.clear()
    scene.proxy.accept(frozen=True)
    settings = HedgingSettings(hedge_delay=0.1, initial_tokens=50)
    publisher = make(hedging_settings=settings, connections=0)
    futures = [publisher.publish(scene.topic, b"%d" % number) for number in range(20)]
    time.sleep(3.0)
    scene.proxy.accept()
    for connection in scene.proxy.connections:
        connection.thaw()
    for future in futures:
        future.result(timeout=20)
    assert len(scene.server.attempts(scene.topic)) == 20
    assert publisher.hedging_stats().hedges_due == 0
