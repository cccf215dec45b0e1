"""Flow control in its three behaviours: the credit of a message comes back on every path."""

from __future__ import annotations

import concurrent.futures
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from google.cloud.pubsub_v1.publisher.exceptions import FlowControlLimitError, MessageTooLargeError
from google.cloud.pubsub_v1.types import (
    BatchSettings,
    LimitExceededBehavior,
    PublisherOptions,
    PublishFlowControl,
)

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status, TooFewIds

from .conftest import FAST, ONE_MESSAGE, MakePublisher

IGNORE, BLOCK, ERROR = (
    LimitExceededBehavior.IGNORE,
    LimitExceededBehavior.BLOCK,
    LimitExceededBehavior.ERROR,
)


def limited(
    behavior: LimitExceededBehavior, *, messages: int = 1, tracing: bool = False
) -> PublisherOptions:
    """Make options that let so many messages be under way."""
    return PublisherOptions(
        flow_control=PublishFlowControl(
            message_limit=messages, byte_limit=20_000_000, limit_exceeded_behavior=behavior
        ),
        enable_open_telemetry_tracing=tracing,
    )


def on_a_thread(function: Callable[..., Any], *args: Any) -> concurrent.futures.Future[Any]:
    """Call something that may block for ever, which must not block the test run too."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(function(*args))
        except Exception as error:  # noqa: BLE001 - for who asks the future
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_error(server: PubSubServer, topic: str, make_publisher: MakePublisher) -> None:
    """A message above the limit fails at once; the others are stored, and then there is room."""
    server.set_script(FaultScript(latency=Fixed(0.2)))
    publisher = make_publisher(tokens=0, publisher_options=limited(ERROR, messages=2))
    futures = [publisher.publish(topic, b"data") for _ in range(3)]
    assert [future.done() for future in futures] == [False, False, True]
    assert isinstance(futures[2].exception(), FlowControlLimitError)
    for future in futures[:2]:
        future.result(timeout=5)
    publisher.publish(topic, b"data").result(timeout=5)
    assert len(server.messages()) == 3


def test_ignore(server: PubSubServer, topic: str, make_publisher: MakePublisher) -> None:
    """Limits that are to be ignored are."""
    server.set_script(FaultScript(latency=Fixed(0.1)))
    publisher = make_publisher(tokens=0, publisher_options=limited(IGNORE))
    futures = [publisher.publish(topic, b"data") for _ in range(5)]
    assert len({future.result(timeout=5) for future in futures}) == 5


def test_block(server: PubSubServer, topic: str, make_publisher: MakePublisher) -> None:
    """``publish()`` waits until there is room, and then goes on."""
    server.set_script(FaultScript(faults=[Stall(0.8, calls=[1])]))
    publisher = make_publisher(tokens=0, publisher_options=limited(BLOCK))
    called = time.monotonic()
    first = publisher.publish(topic, b"data")
    assert time.monotonic() - called < 0.4
    second = publisher.publish(topic, b"data")
    assert 0.7 < time.monotonic() - called < 2
    assert first.done()
    second.result(timeout=5)


def test_many_threads_block(server: PubSubServer, topic: str) -> None:
    """With room for three, sixty messages of twenty threads all get through, in full batches."""
    server.set_script(FaultScript(latency=Fixed(0.005)))
    with (
        HedgedPublisher(
            BatchSettings(max_messages=3, max_latency=0.01),
            limited(BLOCK, messages=3),
            hedging_settings=FAST,
        ) as publisher,
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        ids = pool.map(
            lambda number: publisher.publish(topic, b"%d" % number).result(timeout=10), range(60)
        )
        assert len(set(ids)) == 60
    assert len(server.messages()) == 60


@pytest.mark.parametrize("tracing", [False, True], ids=["", "tracing"])
@pytest.mark.parametrize(
    "path", ["stored", "hedged", "failed", "too few ids", "oversize", "closed channel"]
)
def test_credit_comes_back(
    server: PubSubServer, topic: str, make_publisher: MakePublisher, path: str, tracing: bool
) -> None:
    """However a message ends, there is room for the next one, already in its callbacks."""
    publisher = make_publisher(tokens=1, publisher_options=limited(ERROR, tracing=tracing))
    next_ones: list[Any] = []
    if path == "oversize":
        with pytest.raises(MessageTooLargeError):
            publisher.publish(topic, b"x" * 10_000_001)
        next_ones.append(publisher.publish(topic, b"data"))
    else:
        faults: dict[str, Any] = {
            "hedged": [Stall(30, calls=[1])],
            "failed": [Status("PERMISSION_DENIED", calls=[1])],
            "too few ids": [TooFewIds(calls=[1])],
        }
        server.set_script(FaultScript(faults=faults.get(path, [])))
        if path == "closed channel":
            publisher.transport.close()
        called = threading.Event()

        def publish_next(_: Any) -> None:
            next_ones.append(publisher.publish(topic, b"data"))
            called.set()

        publisher.publish(topic, b"data").add_done_callback(publish_next)
        assert called.wait(5)
    assert not isinstance(next_ones[0].exception(timeout=5), FlowControlLimitError)


@pytest.mark.parametrize("data", [b"x" * 10_000_001, "text"], ids=["oversize", "text"])
def test_what_is_refused_blocks_nobody(
    topic: str, make_publisher: MakePublisher, data: Any
) -> None:
    """After a message that cannot be published the next one finds the room that there was."""
    publisher = make_publisher(tokens=0, publisher_options=limited(BLOCK))
    for _ in range(2):
        with pytest.raises((MessageTooLargeError, TypeError)):
            publisher.publish(topic, data)
    on_a_thread(publisher.publish, topic, b"data").result(timeout=5).result(timeout=5)


@pytest.mark.parametrize("end", ["stop", "close"])
def test_who_waits_for_room_when_it_ends(server: PubSubServer, topic: str, end: str) -> None:
    """Threads that wait in ``publish()`` when the publisher ends get an error, each of them."""
    server.set_script(FaultScript(faults=[Stall(0.3)]))
    publisher = HedgedPublisher(ONE_MESSAGE, limited(BLOCK), hedging_settings=FAST)
    first = publisher.publish(topic, b"data")
    waiting = [on_a_thread(publisher.publish, topic, b"late") for _ in range(3)]
    time.sleep(0.05)  # until they wait
    end_it: Callable[[], None] = getattr(publisher, end)
    end_it()
    for call in waiting:
        assert isinstance(call.exception(timeout=5), RuntimeError)
    assert first.result(timeout=5)
    publisher.close()
    assert len(server.messages()) == 1


def test_an_interrupt_while_it_waits_for_room(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Who gives up waiting leaves no gap in the queue: the next one finds the room."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    publisher = make_publisher(tokens=0, publisher_options=limited(BLOCK))
    server.set_script(FaultScript(faults=[Stall(0.8, calls=[1])]))
    first = publisher.publish(topic, b"data")
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            publisher.publish(topic, b"late")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not first.done()
    on_a_thread(publisher.publish, topic, b"data").result(timeout=5).result(timeout=5)
    assert len(server.messages()) == 2
