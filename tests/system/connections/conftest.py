"""A server behind a proxy, and publishers of both kinds on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import PubSubServer, TcpProxy

from ..aio.blocking import BlockingPublisher, LoopThread
from ..conftest import ONE_MESSAGE
from .scene import SETTINGS, Scene, warm_up

MakePublisher = Callable[..., Any]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Run a server in a process of its own behind a proxy; clients made meanwhile use the proxy."""
    with PubSubServer(process=True) as server, TcpProxy(server.address) as proxy:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", proxy.address)
        yield Scene(proxy=proxy, topic=server.create_topic("orders"), server=server)


@pytest.fixture(params=["sync", "asyncio"])
def make_publisher(request: pytest.FixtureRequest, scene: Scene) -> Iterator[MakePublisher]:
    """Make publishers of either kind that send one message a request; close them after the test.

    Unless told otherwise they have their connections and their tokens.
    """
    with ExitStack() as stack:
        loop = stack.enter_context(LoopThread()) if request.param == "asyncio" else None
        stack.callback(asyncio.set_event_loop, None)

        def make(
            *,
            hedging_settings: HedgingSettings = SETTINGS,
            connections: int = 2,
            **arguments: Any,
        ) -> Any:
            arguments = {
                "batch_settings": ONE_MESSAGE,
                "hedging_settings": hedging_settings,
                **arguments,
            }
            publisher = (
                HedgedPublisher(**arguments)
                if loop is None
                else BlockingPublisher(loop, **arguments)
            )
            stack.callback(publisher.close, timeout=10)
            if connections:
                warm_up(publisher, scene, connections=connections)
            return publisher

        yield make
        # Before the publishers close: what a fault still holds back must not hold them up.
        scene.proxy.accept()
        for connection in scene.proxy.connections:
            connection.thaw()
            connection.delay(0)
            connection.limit(None)
