"""A server, and publishers of both kinds that have earned their tokens."""

from __future__ import annotations

import concurrent.futures
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import pytest
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions

from hedged_pubsub import HedgedPublisher, HedgingSettings
from hedged_pubsub.testing import FaultScript, PubSubServer

from .both import BlockingPublisher, LoopThread

ONE_MESSAGE = BatchSettings(max_messages=1)
"""Each publish is a request of its own."""

FAST = HedgingSettings(hedge_delay=0.1)
"""The shortest hedge delay there is."""

TOPIC = "projects/test/topics/orders"

New = Callable[..., HedgedPublisher]
Make = New

both_kinds = pytest.mark.parametrize("kind", ["sync", "asyncio"])
"""Run a test with the synchronous publisher, and with the asyncio one behind its interface."""

both_clients = pytest.mark.parametrize(
    "publisher_class", [pubsub_v1.PublisherClient, HedgedPublisher]
)
"""What a program sees must be the same with either class."""


@pytest.fixture
def server() -> Iterator[PubSubServer]:
    """Run a server in this process, with one topic; clients made meanwhile use it."""
    with PubSubServer(set_emulator_host=True) as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def topic(server: PubSubServer) -> str:
    """Return the topic of the test."""
    return TOPIC


@pytest.fixture
def kind() -> str:
    """Return which kind of publisher the test is about."""
    return "sync"


@pytest.fixture
def new_publisher(kind: str) -> Iterator[New]:
    """Make publishers of that kind, with the constructor's arguments."""
    if kind == "sync":
        yield HedgedPublisher
    else:
        with LoopThread() as loop:
            yield cast(New, partial(BlockingPublisher, loop))


@pytest.fixture
def make(server: PubSubServer, new_publisher: New) -> Iterator[Make]:
    """Make publishers that send one message a request, and close them after the test.

    ``tokens`` are earned before; the server forgets that, and follows ``script`` from then on.
    """
    with ExitStack() as stack:

        def make_one(
            batch_settings: BatchSettings = ONE_MESSAGE,
            publisher_options: PublisherOptions | tuple[()] = (),
            *,
            tokens: int = 0,
            script: FaultScript | None = None,
            hedging_settings: HedgingSettings | None = FAST,
            **arguments: Any,
        ) -> HedgedPublisher:
            publisher = new_publisher(
                batch_settings, publisher_options, hedging_settings=hedging_settings, **arguments
            )
            stack.callback(publisher.close, timeout=10)
            if hedging_settings is not None:
                earn(publisher, tokens)
            server.clear()
            if script is not None:
                server.set_script(script)
            return publisher

        yield make_one
        # Before the publishers close: what a fault still holds back must not hold them up.
        server.set_script(FaultScript())


def earn(publisher: HedgedPublisher, tokens: int = 1) -> None:
    """Publish until there are so many tokens; a slow publish may cost one."""
    while publisher.hedging_stats(TOPIC).tokens < tokens:
        future = publisher.publish(TOPIC, b"token")
        publisher.flush(timeout=10)
        future.result(timeout=10)


def on_threads(*calls: Callable[[], object]) -> list[concurrent.futures.Future[Any]]:
    """Start calls at the same time, each on a daemon thread that may hang."""
    barrier = threading.Barrier(len(calls))
    outcomes: list[concurrent.futures.Future[Any]] = []

    def run_one(call: Callable[[], object], outcome: concurrent.futures.Future[Any]) -> None:
        barrier.wait()
        try:
            outcome.set_result(call())
        except BaseException as error:  # noqa: BLE001 - for who asks the future
            outcome.set_exception(error)

    for call in calls:
        outcomes.append(concurrent.futures.Future())
        threading.Thread(target=run_one, args=(call, outcomes[-1]), daemon=True).start()
    return outcomes


def wait_until(condition: Callable[[], object], timeout: float = 5.0) -> None:
    """Wait for something that happens on another thread, and fail if it does not."""
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up, "this did not happen in time"
        time.sleep(0.005)


def settled(server: PubSubServer) -> Callable[[], bool]:
    """Return a condition: no attempt is pending at the server."""
    return lambda: all(attempt.outcome != "pending" for attempt in server.attempts())


def run_python(
    *arguments: str, timeout: float, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with more of an environment; the program finds the server by the variable."""
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-W", "ignore::DeprecationWarning", *arguments],
        # Or gRPC says at each fork that other threads are inside of it.
        env={**os.environ, "GRPC_VERBOSITY": "NONE", **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


# Lines that a busy machine is the reason of: asyncio found a step slow; and in a forked child gRPC,
# at whatever verbosity, came to a connection of its parent's, which it closes then. The first line
# that it writes has one before it about where the lines go.
_OF_THE_MACHINE = re.compile(
    r"^(?:Executing .* took [0-9.]+ seconds"
    r"|.*epoll_ctl failed: file descriptor was created pre fork.*"
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR)\n",
    re.MULTILINE,
)


def complaints(stderr: str) -> str:
    """Return what a program wrote to stderr, but for lines that say nothing about it."""
    return _OF_THE_MACHINE.sub("", stderr)
