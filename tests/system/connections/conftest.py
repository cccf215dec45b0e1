"""A server behind a proxy, and publishers of both kinds on it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from hedged_pubsub.testing import FaultScript, PubSubServer, TcpProxy

from ..conftest import ONE_MESSAGE, Make, New
from .scene import SETTINGS, Scene, warm_up

_topics = (f"orders-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def process_server() -> Iterator[PubSubServer]:
    """Run a server in a process of its own."""
    with PubSubServer(process=True) as server:
        yield server


@pytest.fixture
def scene(process_server: PubSubServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Put a proxy in front of the server; clients made meanwhile use it."""
    with TcpProxy(process_server.address) as proxy:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", proxy.address)
        topic = process_server.create_topic(next(_topics))
        yield Scene(proxy=proxy, topic=topic, server=process_server)
    process_server.set_script(FaultScript())


@pytest.fixture(params=["sync", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return which kind of publisher the test is about; here, one after the other."""
    kind: str = request.param
    return kind


@pytest.fixture
def make(scene: Scene, new_publisher: New) -> Iterator[Make]:
    """Make publishers that send one message a request; close them after the test.

    Unless told otherwise they have their connections and their tokens.
    """
    with ExitStack() as stack:

        def make_one(*, connections: int = 2, **arguments: Any) -> Any:
            publisher = new_publisher(ONE_MESSAGE, **{"hedging_settings": SETTINGS, **arguments})
            stack.callback(publisher.close, timeout=10)
            if connections:
                warm_up(publisher, scene, connections=connections)
            return publisher

        yield make_one
        # Before the publishers close: what a fault still holds back must not hold them up.
        scene.proxy.accept()
        for connection in scene.proxy.connections:
            connection.thaw()
            connection.delay(0)
            connection.limit(None)
