"""Users' code holds up nobody: callbacks, log handlers, finalizers; also without new threads."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from google.cloud.pubsub_v1.types import BatchSettings

from hedged_pubsub import HedgedPublisher
from hedged_pubsub._sync.rpc import PublishRpc
from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, TooFewIds

from ..conftest import TOPIC, Make, wait_until
from ..programs import run

_TOGETHER = BatchSettings(max_messages=2000, max_latency=0.02)


def test_short_callbacks_hold_up_neither_publish_nor_hedge(
    server: PubSubServer, make: Make
) -> None:
    """With 1,000 callbacks of 20 ms under way, other messages are sent, hedged and stored."""
    publisher = make(tokens=2, batch_settings=_TOGETHER)
    called: list[object] = []
    over = threading.Event()

    def take_20_ms(future: object) -> None:
        called.append(future)
        over.wait(0.02)

    server.set_script(FaultScript(latency=Fixed(0.05)))  # until the callbacks are added
    for _ in range(1000):
        publisher.publish(TOPIC, b"data").add_done_callback(take_20_ms)
    wait_until(lambda: called)
    server.set_script(FaultScript(faults=[Stall(30, attempts=[0])]))
    publisher.publish(TOPIC, b"hedged").result(timeout=5)
    assert len(called) < 950
    over.set()
    wait_until(lambda: len(called) == 1000)


@contextmanager
def handled(handler: logging.Handler) -> Iterator[None]:
    """Let a handler see what the package logs."""
    logger = logging.getLogger("hedged_pubsub")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def test_a_log_handler_that_publishes_and_waits(server: PubSubServer, make: Make) -> None:
    """An answer with too few ids fails its batch at once, and the line about it is stored."""
    publisher = make(script=FaultScript(faults=[TooFewIds(calls=[1])]))
    stored: list[str] = []

    class PublishingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = record.getMessage().encode()
            stored.append(publisher.publish(TOPIC, line).result(timeout=5))

    with handled(PublishingHandler()):
        error = publisher.publish(TOPIC, b"data").exception(timeout=2)
        assert "not successfully published" in str(error)
        wait_until(lambda: stored)
    assert [message.data for message in server.messages()] == [
        b"data",
        b"Only 0 of 1 messages were published.",
    ]


def test_a_slow_log_handler_holds_up_nobody(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The hedged message and those after it are stored while the line is still being written."""
    publisher = make(tokens=1, script=FaultScript(faults=[Stall(30, calls=[1])]))
    caplog.set_level(logging.DEBUG, logger="hedged_pubsub")
    ends = threading.Event()
    lines: list[tuple[str, str]] = []

    class SlowHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ends.wait(20)
            lines.append((threading.current_thread().name, record.getMessage()))

    with handled(SlowHandler()):
        publisher.publish(TOPIC, b"hedged").result(timeout=5)
        for _ in range(20):
            publisher.publish(TOPIC, b"data").result(timeout=5)
        assert not lines
        ends.set()
        wait_until(lambda: lines)
    ((thread, line),) = lines
    assert thread == "hedged-pubsub-worker"
    assert line.startswith(f"hedge 1 on {TOPIC}, sent after 0.")


@pytest.mark.parametrize("error", [ValueError(), SystemExit()], ids=["raises", "exits"])
def test_a_log_handler_that_raises(make: Make, error: BaseException) -> None:
    """Every callback is called all the same, and publishing goes on."""
    publisher = make(batch_settings=BatchSettings(max_latency=0.05))
    called: list[object] = []

    class RaisingHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise error

    with handled(RaisingHandler()):
        for future in [publisher.publish(TOPIC, b"data") for _ in range(3)]:
            future.add_done_callback(lambda _: 1 / 0)
            future.add_done_callback(called.append)
        wait_until(lambda: len(called) == 3)
    assert publisher.publish(TOPIC, b"later").result(timeout=5)


def test_no_thread_can_be_started_any_more(server: PubSubServer) -> None:
    """Callbacks that block then hold up neither results nor the hedges of other batches."""
    other = server.create_topic("other")
    slow_original = Stall(60, topic=other, attempts=[0], calls=[16, 17])
    server.set_script(FaultScript(faults=[Stall(60, calls=[12]), slow_original]))
    lines = run(
        """
        publisher = HedgedPublisher(
            settings(max_messages=1),
            hedging_settings=HedgingSettings(hedge_delay=0.1, second_connection=False),
        )
        for _ in range(10):
            publisher.publish(other, b"data").result(timeout=5)
        called, release, blocking = threading.Event(), threading.Event(), []
        publisher.publish(topic, b"data").add_done_callback(lambda _: called.set())
        called.wait(5)
        publisher.publish(topic, b"held")  # gRPC's thread stays as long as there is a call
        while publisher.hedging_stats().attempts < 12:
            time.sleep(0.01)

        def refuse(*args, **kwargs):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = refuse
        def block(future):
            blocking.append(future)
            release.wait()
        for _ in range(3):
            publisher.publish(topic, b"data").add_done_callback(block)
        while not blocking:
            time.sleep(0.01)
        time.sleep(0.1)  # until others would be started for those that wait
        # Not waited for: who waits may be the one that runs callbacks.
        futures = [publisher.publish(name, b"data") for name in (topic, other)]
        give_up = time.monotonic() + 5
        while not all(future.done() for future in futures) and time.monotonic() < give_up:
            time.sleep(0.01)
        print([future.done() and future.exception() for future in futures], flush=True)
        os._exit(0)
        """
    )
    assert lines == ["[None, None]"]
    assert [attempt.attempt_number for attempt in server.attempts(other)[10:]] == [0, 1]


def publish_deeply(publisher: HedgedPublisher, depth: int = 5) -> None:
    """Publish and wait, and so on in the done-callback of that."""
    future = publisher.publish(TOPIC, b"more")
    if depth > 1:
        future.add_done_callback(lambda _: publish_deeply(publisher, depth - 1))
    future.result(5)


_HARMS: dict[str, Callable[[HedgedPublisher, threading.Event], object]] = {
    "raises": lambda _publisher, _release: 1 / 0,
    "sleeps": lambda _publisher, release: release.wait(20),
    "publishes and waits": lambda publisher, _: publish_deeply(publisher),
    "flushes": lambda publisher, _release: publisher.flush(timeout=5),
    "stops": lambda publisher, _release: publisher.stop(),
    "closes": lambda publisher, _release: publisher.close(timeout=5),
}


@pytest.mark.parametrize("harm", _HARMS)
def test_a_callback_that_behaves_badly(server: PubSubServer, make: Make, harm: str) -> None:
    """Other messages, of its batch and of another one, get results and callbacks promptly.

    Nor do hedges wait for it.
    """
    other = server.create_topic("other")
    publisher = make(batch_settings=_TOGETHER, tokens=1)
    ended, release = threading.Event(), threading.Event()

    def misbehave(_: Any) -> None:
        try:
            _HARMS[harm](publisher, release)
        finally:
            ended.set()

    called: list[Any] = []
    bad = [publisher.publish(TOPIC, b"data") for _ in range(2)]
    good = [publisher.publish(TOPIC, b"data"), publisher.publish(other, b"data")]
    for future in bad:
        future.add_done_callback(misbehave)
    for future in (*bad, *good):
        future.add_done_callback(called.append)
    for future in (*bad, *good):
        future.result(timeout=5)
    wait_until(lambda: set(good) <= set(called))  # before a callback that sleeps ends
    if harm == "sleeps":
        server.set_script(FaultScript(faults=[Stall(60, attempts=[0])]))
        publisher.publish(TOPIC, b"hedged").result(timeout=5)
        assert publisher.hedging_stats(TOPIC).hedges_won >= 1
        assert not ended.is_set()
        server.set_script(FaultScript())
    release.set()

    assert ended.wait(5)
    wait_until(lambda: set(called) == {*bad, *good})
    if harm == "publishes and waits":
        wait_until(lambda: len(server.messages()) == len({*bad, *good}) + 2 * 5)
    if harm in {"stops", "closes"}:
        with pytest.raises(RuntimeError, match="stopped publisher"):
            publisher.publish(TOPIC, b"late")
    else:
        publisher.publish(TOPIC, b"data").result(timeout=5)


def test_what_a_callback_sets_in_its_context_stays_there(server: PubSubServer, make: Make) -> None:
    """A context variable that one callback sets is not seen by another on the same thread."""
    server.set_script(FaultScript(latency=Fixed(0.1)))  # until the callbacks are added
    publisher = make()
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []

    def look_and_set(_: Any) -> None:
        seen.append(variable.get())
        variable.set("set")

    for _ in range(10):
        publisher.publish(TOPIC, b"data").add_done_callback(look_and_set)
    wait_until(lambda: len(seen) == 10)
    assert set(seen) == {"unset"}


def test_a_finalizer_on_grpcs_thread_cannot_wait_for_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The garbage collector may run a user's finalizer anywhere: it gets an error, no deadlock."""
    publisher = make()
    errors: list[BaseException] = []

    class Dropped:
        def __del__(self) -> None:
            try:
                publisher.publish(TOPIC, b"from a finalizer").result(5)
            except RuntimeError as error:
                errors.append(error)

    outcome = PublishRpc.outcome

    def outcome_with_garbage(rpc: PublishRpc, batch: Any, call: Any) -> list[str]:
        monkeypatch.undo()
        Dropped()
        return outcome(rpc, batch, call)

    monkeypatch.setattr(PublishRpc, "outcome", outcome_with_garbage)
    assert publisher.publish(TOPIC, b"data").result(5)
    publisher.flush(timeout=5)
    assert "finalizer" in str(errors[0])
