"""With hedging off: the official client, of which every accepted publish ends, as ``close`` does.

It is interrupted in ``interruptions/test_switched_off.py``.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError
from google.cloud.pubsub_v1.publisher.exceptions import (
    MessageTooLargeError,
    PublishToPausedOrderingKeyException,
)
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions
from google.pubsub_v1.services.publisher.transports import PublisherRestTransport

from hedged_pubsub.testing import FaultScript, Fixed, PubSubServer, Stall, Status

from .conftest import TOPIC, Make, on_threads, wait_until

# No timer sends an open batch: only that it is full, or a flush.
PATIENT = BatchSettings(max_latency=float("inf"))
PAIRS = BatchSettings(max_messages=3, max_latency=float("inf"))  # two messages a batch
SOON = BatchSettings(max_latency=0.02)
ORDERED = PublisherOptions(enable_message_ordering=True)
TOO_LARGE = b"x" * 10_000_001


@pytest.fixture
def make(make: Make) -> Make:
    """Make publishers with hedging off; a close that does not end in time fails its test."""
    return partial(make, hedging_settings=None)


def in_time(call: Callable[[], object]) -> None:
    """Call something that must return in time, and raise what it raises."""
    (outcome,) = on_threads(call)
    outcome.result(timeout=5)


BATCH_THREAD, TIMER_THREAD = "Thread-CommitBatch", "Thread-PubSubBatch"


class NoThread:
    """Makes ``threading.Thread.start`` fail for the official client's threads of a name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int = 10**6) -> None:
        self.left = times
        start = threading.Thread.start

        def failing_start(thread: threading.Thread) -> None:
            if self.left and thread.name.startswith(name):
                self.left -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", failing_start)


def batch_threads() -> list[threading.Thread]:
    """Return the official client's threads that send batches."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(BATCH_THREAD)]


def fail_with(error_type: type[BaseException]) -> Callable[[object], bool]:
    """Return a retry predicate, or a done-callback, that raises."""

    def fail(_: object) -> bool:
        raise error_type

    return fail


# What the official client leaves pending


def test_close_with_a_timeout_ends_what_is_left(server: PubSubServer, make: Make) -> None:
    """Undecided futures fail with a reason, and keep that when the answer comes after all."""
    publisher = make(PATIENT)
    server.set_script(FaultScript(faults=[Stall(0.3)]))
    futures = [publisher.publish(TOPIC, b"data") for _ in range(2)]
    futures[0].add_done_callback(lambda _: publisher.flush())  # does not wait for the other one
    with pytest.raises(concurrent.futures.TimeoutError, match=r"2 of 2 messages .* after 0\.1 s"):
        publisher.close(timeout=0.1)
    for future in futures:
        assert "closed before the message was stored" in str(future.exception(timeout=0))
    wait_until(lambda: not batch_threads())  # pytest fails the test for what they let escape
    for future in futures:
        assert isinstance(future.exception(timeout=0), RuntimeError)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # Attributes that are named like an argument.
        ({"retry": "3"}, (AttributeError, TypeError)),
        ({"timeout": "3"}, (AttributeError, TypeError)),
        ({"retry": Retry(fail_with(ZeroDivisionError))}, ZeroDivisionError),
        ({"retry": Retry(fail_with(SystemExit))}, SystemExit),
    ],
    ids=["retry", "timeout", "predicate that raises", "predicate that exits"],
)
def test_arguments_that_end_a_publish(
    server: PubSubServer, make: Make, arguments: dict[str, Any], expected: Any
) -> None:
    """Whatever they lead to is the future's error; the next publish works, and so does close."""
    publisher = make()
    server.set_script(FaultScript(faults=[Status("UNAVAILABLE", times=1)]))
    future = publisher.publish(TOPIC, b"data", **arguments)
    assert isinstance(future.exception(timeout=2), expected)
    assert publisher.publish(TOPIC, b"data").result(timeout=2)


def test_a_closed_channel(make: Make) -> None:
    """Publishing over a closed channel gives the future the error, and ``close`` returns."""
    publisher = make()
    publisher.transport.close()
    future = publisher.publish(TOPIC, b"data")
    assert isinstance(future.exception(timeout=2), ValueError)


def test_credentials_that_cannot_be_refreshed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where gRPC does not make it UNAVAILABLE, the future gets google.auth's own error."""

    class Revoked(Credentials):
        def refresh(self, request: object) -> None:
            raise RefreshError("the key was revoked")

    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    transport = PublisherRestTransport(host="127.0.0.1:1", credentials=Revoked())  # type: ignore[no-untyped-call]
    future = make(transport=transport).publish("projects/p/topics/t", b"data")
    assert isinstance(future.exception(timeout=2), RefreshError)


# The thread ends with the error, as officially.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_done_callback_that_raises(server: PubSubServer, make: Make) -> None:
    """Even ``SystemExit`` leaves the other messages of the batch their ids."""
    publisher = make(PATIENT)
    futures = [publisher.publish(TOPIC, b"data") for _ in range(4)]
    for number, error_type in enumerate((SystemExit, ZeroDivisionError, SystemExit)):
        futures[number].add_done_callback(fail_with(error_type))
    in_time(publisher.flush)
    assert len({future.result(timeout=2) for future in futures}) == 4
    assert [attempt.message_count for attempt in server.attempts()] == [4]
    wait_until(lambda: not batch_threads())


@pytest.mark.parametrize("sent_by", ["flush", "publish", "timer"])
def test_no_thread_for_a_batch(make: Make, monkeypatch: pytest.MonkeyPatch, sent_by: str) -> None:
    """Its futures get that error, which ``publish()`` raises as officially; later ones work."""
    publisher = make(SOON if sent_by == "timer" else PAIRS)
    no_thread = NoThread(monkeypatch, BATCH_THREAD)
    futures = [publisher.publish(TOPIC, b"data") for _ in range(2)]
    if sent_by == "flush":
        in_time(lambda: publisher.flush(timeout=2))
    elif sent_by == "publish":
        with pytest.raises(RuntimeError, match="can't start new thread"):
            publisher.publish(TOPIC, b"data")
    for future in futures:
        assert "can't start new thread" in str(future.exception(timeout=2))
    no_thread.left = 0
    future = publisher.publish(TOPIC, b"data")
    if sent_by != "timer":  # which shall have outlived it
        in_time(publisher.flush)
    assert future.result(timeout=2)


# The thread of the batch before ends with the error, as officially.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_thread_for_the_next_batch_of_a_key(
    server: PubSubServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored stays so; the next batch gets that error, and what follows is cancelled."""
    publisher = make(PAIRS, ORDERED)
    server.set_script(FaultScript(latency=Fixed(0.1)))
    futures = [publisher.publish(TOPIC, b"data", "key") for _ in range(6)]
    (flush,) = on_threads(publisher.flush)
    wait_until(lambda: server.attempts())
    NoThread(monkeypatch, BATCH_THREAD)
    assert all(future.result(timeout=2) for future in futures[:2])
    for future in futures[2:4]:
        assert "can't start new thread" in str(future.exception(timeout=2))
    for future in futures[4:]:
        assert "prior ordered message" in str(future.exception(timeout=2))
    flush.result(timeout=5)
    wait_until(lambda: not batch_threads())


@pytest.mark.parametrize("failures", [1, 10**6], ids=["once", "always"])
def test_no_thread_for_the_timer(
    make: Make, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """An open batch is sent in time all the same: then at the next chance, or now."""
    publisher = make(SOON)
    no_thread = NoThread(monkeypatch, TIMER_THREAD, failures)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        publisher.publish(TOPIC, b"data")
    in_time(lambda: publisher.flush(timeout=2))
    no_thread.left = 0
    assert publisher.publish(TOPIC, b"data").result(timeout=2)


# flush() and close()


@pytest.mark.parametrize("first", ["stop", "close"])
def test_close_beside_another(server: PubSubServer, make: Make, first: str) -> None:
    """It waits for what a stop or another close has sent; nothing is accepted any more."""
    publisher = make(PATIENT)
    server.set_script(FaultScript(latency=Fixed(0.2)))
    future = publisher.publish(TOPIC, b"data")
    (ending,) = on_threads(getattr(publisher, first))
    wait_until(lambda: server.attempts())
    with pytest.raises(RuntimeError, match="already stopped"):
        publisher.stop()  # officially
    in_time(publisher.close)
    assert future.result(timeout=0)
    ending.result(timeout=5)
    publisher.close()
    with pytest.raises(RuntimeError, match="stopped publisher"):
        publisher.publish(TOPIC, b"late")


@pytest.mark.parametrize(
    ("method", "error_type"),
    [("close", KeyboardInterrupt), ("flush", concurrent.futures.TimeoutError)],
)
def test_an_exception_while_it_waits(
    server: PubSubServer,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    error_type: type[BaseException],
) -> None:
    """It comes out, and is not taken for the end of the timeout; close ends the futures even so."""
    publisher = make(PATIENT)
    server.set_script(FaultScript(faults=[Stall(0.2)]))
    future = publisher.publish(TOPIC, b"data")

    def interrupt(timeout: float | None = None) -> None:
        raise error_type("the user's own")

    monkeypatch.setattr(future, "exception", interrupt)
    with pytest.raises(error_type, match="the user's own"):
        getattr(publisher, method)(timeout=60)
    monkeypatch.undo()
    assert future.done() == (method == "close")


@pytest.mark.parametrize("method", ["flush", "close"])
def test_a_done_callback_may_call_it(make: Make, method: str) -> None:
    """It does not wait for the other messages of the batch, which wait for the callback."""
    publisher = make(PATIENT)
    futures = [publisher.publish(TOPIC, b"data") for _ in range(3)]
    futures[0].add_done_callback(lambda _: getattr(publisher, method)())
    publisher.stop()
    assert all(future.result(timeout=2) for future in futures)


def test_waiting_locks_one_future_at_a_time(server: PubSubServer, make: Make) -> None:
    """Or a thread that waits for the same futures in another order would be waited for."""
    publisher = make(PATIENT)
    server.set_script(FaultScript(latency=Fixed(0.3)))
    futures = [publisher.publish(TOPIC, b"data") for _ in range(3)]
    *others, last = sorted(futures, key=id)  # the order of ``concurrent.futures.wait``
    with last._condition:
        (waiter,) = on_threads(publisher.flush)
        wait_until(lambda: server.attempts())
        for future in others:
            assert future._condition.acquire(timeout=0.1)
            future._condition.release()
    waiter.result(timeout=5)
    assert all(future.done() for future in futures)


# Ordering


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
def test_an_error_pauses_the_ordering_key(server: PubSubServer, make: Make, is_known: bool) -> None:
    """Also one that the official client does not know; callbacks of what it cancels may publish."""
    publisher = make(BatchSettings(max_messages=2, max_latency=0.01), ORDERED)
    code = "PERMISSION_DENIED" if is_known else "UNAVAILABLE"
    server.set_script(FaultScript(latency=Fixed(0.1), faults=[Status(code, times=1)]))
    kwargs: Any = {} if is_known else {"retry": Retry(fail_with(ZeroDivisionError))}
    futures = [publisher.publish(TOPIC, b"%d" % n, "key", **kwargs) for n in range(5)]
    again: list[Any] = []
    for future in futures:
        future.add_done_callback(lambda _: again.append(publisher.publish(TOPIC, b"x", "key")))
    expected = exceptions.PermissionDenied if is_known else ZeroDivisionError
    assert isinstance(futures[0].exception(timeout=2), expected)
    for future in futures[2:]:
        assert "prior ordered message" in str(future.exception(timeout=2))
    wait_until(lambda: len(again) == 5)
    for future in again:
        assert isinstance(future.exception(timeout=2), PublishToPausedOrderingKeyException)
    assert publisher.publish(TOPIC, b"other", "other key").result(timeout=2)
    publisher.resume_publish(TOPIC, "key")
    assert publisher.publish(TOPIC, b"resumed", "key").result(timeout=2)
    assert [message.data for message in server.messages()] == [b"other", b"resumed"]


@pytest.mark.parametrize("method", ["flush", "close"])
def test_all_batches_of_an_ordering_key_are_waited_for(
    server: PubSubServer, make: Make, method: str
) -> None:
    """One after the other is sent, in their order, however many there are."""
    publisher = make(PAIRS, ORDERED)
    futures = [publisher.publish(TOPIC, b"%d" % n, "key") for n in range(8)]
    in_time(getattr(publisher, method))
    assert all(future.result(timeout=0) for future in futures)
    assert [message.data for message in server.messages()] == [b"%d" % n for n in range(8)]


def test_an_oversize_message_does_not_block_its_ordering_key(make: Make) -> None:
    """Officially an empty batch would be first for ever."""
    publisher = make(SOON, ORDERED)
    with pytest.raises(MessageTooLargeError):
        publisher.publish(TOPIC, TOO_LARGE, "key")
    # The timer that sends this sends the other batch before, of no messages.
    publisher.publish(TOPIC, b"other", "other key").result(timeout=2)
    time.sleep(0.05)
    assert publisher.publish(TOPIC, b"data", "key").result(timeout=2)
