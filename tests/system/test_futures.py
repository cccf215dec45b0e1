"""The futures of a publisher, and callbacks that behave badly."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgedPublisher
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

from .conftest import MakePublisher, wait_until

TOGETHER = BatchSettings(max_messages=1000, max_latency=0.02)
"""What is published in one go is one request."""

_PROMPTLY = 0.7
"""Seconds; what is held up by a callback of these tests takes more than a second."""


def test_wait_and_as_completed(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """The standard library waits for futures of one batch and of several."""
    slow = server.create_topic("slow")
    server.set_script(FaultScript(faults=[Stall(0.3, topic="slow")]))
    publisher = make_publisher(tokens=0, batch_settings=TOGETHER)
    late = [publisher.publish(slow, b"data") for _ in range(2)]
    early = [publisher.publish(topic, b"data") for _ in range(2)]

    done, pending = concurrent.futures.wait(
        late + early, timeout=5, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert done
    assert done <= set(early)
    assert set(late) <= pending
    assert set(list(concurrent.futures.as_completed(late + early, timeout=5))[:2]) == set(early)
    done, pending = concurrent.futures.wait(late + early)
    assert done == {*late, *early}
    assert not pending


def test_waiting_for_the_first_error(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """``FIRST_EXCEPTION`` returns when a message has failed."""
    server.set_script(FaultScript(faults=[Stall(0.5, topic=topic)]))
    publisher = make_publisher(tokens=0)
    slow = publisher.publish(topic, b"data")
    failing = publisher.publish(server.topic_path("missing"), b"data")
    done, pending = concurrent.futures.wait(
        [slow, failing], timeout=5, return_when=concurrent.futures.FIRST_EXCEPTION
    )
    assert done == {failing}
    assert pending == {slow}
    assert isinstance(failing.exception(), exceptions.NotFound)


def test_the_end_of_patience(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A result that is not there in time is a timeout, and there later; ``cancel`` is refused."""
    server.set_script(FaultScript(latency=Fixed(1)))
    publisher = make_publisher(tokens=0)
    future = publisher.publish(topic, b"data")
    called = time.monotonic()
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(timeout=0.05)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.exception(timeout=0.05)
    assert 0.1 <= time.monotonic() - called < 0.8
    assert future.cancel() is False
    assert future.cancelled() is False
    assert future.running()
    assert future.result(timeout=5) == server.messages()[0].message_id
    assert future.cancel() is False
    assert not future.running()


def test_an_impatient_asyncio_program(
    server: PubSubServer,
    topic: str,
    make_publisher: MakePublisher,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A wrapped future that asyncio gives up and cancels harms neither publish nor loop."""
    server.set_script(FaultScript(latency=Fixed(0.2)))
    publisher = make_publisher(tokens=0, batch_settings=TOGETHER)
    futures = [publisher.publish(topic, b"data") for _ in range(2)]

    async def main() -> str:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(futures[0]), 0.05)
        return str(await asyncio.wrap_future(futures[1]))

    assert asyncio.run(main()) == futures[1].result()
    assert futures[0].result(timeout=5) != futures[1].result()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_callbacks_come_once_whenever_they_are_added(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Before, during and after the outcome: each callback is called once, with its future."""
    server.set_script(FaultScript(latency=Fixed(0.02)))
    publisher = make_publisher(tokens=0, batch_settings=TOGETHER)
    futures = [publisher.publish(topic, b"data") for _ in range(20)]
    calls: list[tuple[int, Any]] = []
    added = 0
    give_up = time.monotonic() + 5
    after = 0
    while after < 50 and time.monotonic() < give_up:
        after += futures[0].done()
        for future in futures:
            future.add_done_callback(lambda done, number=added: calls.append((number, done)))
            added += 1
    assert futures[0].done()
    wait_until(lambda: len(calls) >= added)
    assert sorted(number for number, _ in calls) == list(range(added))
    assert all(future is futures[number % 20] for number, future in calls)


def test_callbacks_of_a_failed_batch(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A failed message calls its callbacks like a stored one, with the error of the batch."""
    server.set_script(FaultScript(faults=[Status("PERMISSION_DENIED")]))
    publisher = make_publisher(tokens=0, batch_settings=TOGETHER)
    errors: list[Any] = []
    for _ in range(3):
        future = publisher.publish(topic, b"data")
        future.add_done_callback(lambda done: errors.append(done.exception()))
    wait_until(lambda: len(errors) == 3)
    assert all(isinstance(error, exceptions.PermissionDenied) for error in errors)


Harm = Callable[[HedgedPublisher, str], object]

_HARMS: dict[str, Harm] = {
    "raises": lambda _publisher, _topic: 1 / 0,
    "sleeps": lambda _publisher, _topic: time.sleep(1.5),
    "publishes and waits": lambda publisher, topic: publisher.publish(topic, b"more").result(5),
    "flushes": lambda publisher, _topic: publisher.flush(timeout=5),
    "stops": lambda publisher, _topic: publisher.stop(),
    "closes": lambda publisher, _topic: publisher.close(timeout=5),
}


@pytest.mark.parametrize("harm", _HARMS)
def test_a_callback_that_behaves_badly(
    server: PubSubServer, topic: str, make_publisher: MakePublisher, harm: str
) -> None:
    """Other messages, of its batch and of another one, get results and callbacks promptly."""
    other = server.create_topic("other")
    publisher = make_publisher(tokens=0, batch_settings=TOGETHER)
    ended = threading.Event()

    def misbehave(_: Any) -> None:
        try:
            _HARMS[harm](publisher, topic)
        finally:
            ended.set()

    called: list[Any] = []
    bad = [publisher.publish(topic, b"data") for _ in range(2)]
    good = [publisher.publish(topic, b"data"), publisher.publish(other, b"data")]
    for future in bad:
        future.add_done_callback(misbehave)
    for future in (*bad, *good):
        future.add_done_callback(called.append)
    start = time.monotonic()
    for future in (*bad, *good):
        future.result(timeout=5)
    wait_until(lambda: set(good) <= set(called))
    assert time.monotonic() - start < _PROMPTLY

    assert ended.wait(5)
    wait_until(lambda: set(called) == {*bad, *good})
    if harm in {"stops", "closes"}:
        with pytest.raises(RuntimeError, match="stopped publisher"):
            publisher.publish(topic, b"late")
    else:
        start = time.monotonic()
        publisher.publish(topic, b"data").result(timeout=5)
        assert time.monotonic() - start < _PROMPTLY


def test_a_callback_that_stops_the_publisher_leaves_hedging_on(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A batch that is stalled meanwhile is still hedged."""
    other = server.create_topic("other")
    publisher = make_publisher(tokens=1)
    server.set_script(FaultScript(faults=[Stall(30, topic=topic, attempts=[0])]))
    stalled = publisher.publish(topic, b"data")
    publisher.publish(other, b"data").add_done_callback(lambda _: publisher.stop())
    assert stalled.result(timeout=5)
    assert publisher.hedging_stats(topic).hedges_won == 1
    with pytest.raises(RuntimeError, match="stopped publisher"):
        publisher.publish(topic, b"late")


def test_a_hundred_callbacks_that_sleep(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """Each message of a batch may sleep in its callback, and none waits for the others' sleep."""
    publisher = make_publisher(tokens=0, batch_settings=TOGETHER)
    called: list[float] = []

    def sleep(_: Any) -> None:
        called.append(time.monotonic())
        time.sleep(1.5)

    futures = [publisher.publish(topic, b"data") for _ in range(100)]
    for future in futures:
        future.add_done_callback(sleep)
    concurrent.futures.wait(futures, timeout=5)
    done = time.monotonic()
    wait_until(lambda: len(called) == 100)
    assert max(called) - done < 1


def test_what_a_callback_sets_in_its_context_stays_there(
    server: PubSubServer, topic: str, make_publisher: MakePublisher
) -> None:
    """A context variable that one callback sets is not seen by another on the same thread."""
    server.set_script(FaultScript(latency=Fixed(0.1)))  # until the callbacks are added
    publisher = make_publisher(tokens=0)
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    def look_and_set(_: Any) -> None:
        seen.append(variable.get())
        variable.set("set")

    for _ in range(10):
        publisher.publish(topic, b"data").add_done_callback(look_and_set)
    wait_until(lambda: len(seen) == 10)
    assert set(seen) == {"unset"}
