"""Tests that are coroutines, and publishers for tests that are not."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from google.cloud import pubsub_v1

from hedged_pubsub import HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer

from ..conftest import FAST, ONE_MESSAGE
from .blocking import BlockingPublisher, LoopThread
from .publishers import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function on an event loop of its own."""
    test: Callable[..., Awaitable[None]] = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    run(lambda: test(**arguments))
    return True


@pytest.fixture
def make_publisher(server: PubSubServer, topic: str) -> Iterator[Callable[..., BlockingPublisher]]:
    """Make what the fixture of the synchronous tests makes, for those that are shared."""
    with LoopThread() as loop, ExitStack() as stack:

        def make(
            *,
            tokens: int = 3,
            hedging_settings: HedgingSettings | None = FAST,
            batch_settings: pubsub_v1.types.BatchSettings = ONE_MESSAGE,
            **arguments: Any,
        ) -> BlockingPublisher:
            publisher = BlockingPublisher(
                loop,
                batch_settings=batch_settings,
                hedging_settings=hedging_settings,
                **arguments,
            )
            stack.callback(publisher.close, timeout=10)
            while hedging_settings and publisher.hedging_stats(topic).tokens < tokens:
                message_id = publisher.publish(topic, b"warm-up")
                publisher.flush(timeout=10)
                message_id.result(timeout=10)
            server.clear()
            return publisher

        yield make
        # Before the publishers close: what a fault still holds back must not hold them up.
        server.set_script(FaultScript())
        stack.close()
        asyncio.set_event_loop(None)
