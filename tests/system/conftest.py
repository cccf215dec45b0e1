"""A server and publishers that have earned their tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer

ONE_MESSAGE = pubsub_v1.types.BatchSettings(max_messages=1)
"""Each publish is a request of its own."""

FAST = HedgingSettings(hedge_delay=0.1)
"""The shortest hedge delay there is."""

MakePublisher = Callable[..., HedgedPublisher]


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """Run a server in this process; clients made meanwhile use it."""
    with PubSubServer(set_emulator_host=True) as running:
        yield running


@pytest.fixture
def topic(server: PubSubServer) -> str:
    """Create the topic of the test."""
    return server.create_topic("orders")


@pytest.fixture
def make_publisher(server: PubSubServer, topic: str) -> Iterator[MakePublisher]:
    """Make publishers that send one message a request, and close them after the test.

    ``tokens`` are earned before; what that sent is forgotten by the server.
    """
    with ExitStack() as stack:

        def make(
            *,
            tokens: int = 3,
            hedging_settings: HedgingSettings | None = FAST,
            batch_settings: pubsub_v1.types.BatchSettings = ONE_MESSAGE,
            **arguments: Any,
        ) -> HedgedPublisher:
            publisher = HedgedPublisher(
                batch_settings, hedging_settings=hedging_settings, **arguments
            )
            stack.callback(publisher.close, timeout=10)
            if hedging_settings is not None and tokens:
                one_token = round(1 / hedging_settings.refill_ratio)
                for _ in range(tokens * one_token):
                    publisher.publish(topic, b"warm-up")
                    publisher.flush(timeout=10)
                assert publisher.hedging_stats(topic).tokens == tokens
            server.clear()
            return publisher

        yield make
        # Before the publishers close: what a fault still holds back must not hold them up.
        server.set_script(FaultScript())


def wait_until(condition: Callable[[], object], timeout: float = 5.0) -> None:
    """Wait for something that happens on another thread, and fail if it does not."""
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up, "this did not happen in time"
        time.sleep(0.005)
